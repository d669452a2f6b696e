#!/bin/sh
# coterie-serve CONFIG RUN [option or key=value ...]
# Begins the run, goes on with it after a restart, and when it is done waits, so that its directory can be fetched.
set -eu
config=$1
run=$2
shift 2
if [ -f "$run/clients.json" ]; then
    echo "$run: done; fetch the directory, then end this" >&2
    exec python -c 'import signal as s; end = {s.SIGINT, s.SIGTERM}; s.pthread_sigmask(s.SIG_BLOCK, end); s.sigwait(end)'
fi
if [ -f "$run/config.yaml" ]; then
    exec coterie server --resume "$run" "$@"
fi
exec coterie server "$config" --out "$run" "$@"
