"""What went wrong, where, and what to write instead: every error a user can cause is one of these."""

from __future__ import annotations

import copyreg
import difflib
import errno
import re
from collections.abc import Iterable
from typing import Any


class CoterieError(Exception):
    """A mistake in the input, or a run that cannot continue. The command line prints it and exits with 2.

    The message is for people and may be reworded; `code` is for programs and stays (docs/errors.md lists the codes).
    """

    code: str = "unspecified"

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:  # else the default of the class
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles keep the code and the attributes of subclasses, without calling the constructor."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ArgumentError(CoterieError, ValueError):
    """A constructor or a function was given an argument that it does not take."""

    code = "argument-invalid"


class CoterieWarning(UserWarning):
    """Something that is probably not what the user meant."""


class AnswersMissingError(CoterieError):
    """Clients that were needed have not answered."""

    def __init__(self, text: str, round: int = 0, missing: tuple[Any, ...] = (), *, code: str = "") -> None:
        super().__init__(text, code=code)
        self.round, self.missing = round, missing  # and the clients that did not (`Missing`)


class QuorumError(AnswersMissingError):
    """Too few of the clients that were asked have answered."""

    code = "quorum"
    advice = "With a lower quorum the run continues without them."

    def __init__(
        self, text: str, round: int = 0, missing: tuple[Any, ...] = (), *, code: str = "", advice: str = advice
    ) -> None:
        super().__init__(text, round, missing, code=code)
        self.advice = advice  # what to do where only some have answered


class NoAnswerError(CoterieError):
    """No client answered a visit. If a round does not catch it, the method's state stays unchanged."""

    code = "no-answer"


class StoppedError(Exception):
    """Raised by a listener to end a run on purpose: the run's directory says "stopped" and why, not "failed"."""


NOT_FINITE = "that is not finite (NaN or Inf)"


class DivergedError(CoterieError):
    """Numbers grew until they were NaN or Inf: the steps of training diverge."""

    code = "diverged"


def not_finite(what: str) -> DivergedError:
    """The error of a client; a server recognises it by its text (`Missing.diverged`)."""
    return DivergedError(f"{what} {NOT_FINITE}")


class ResumeError(CoterieError):
    """The run directory belongs to another run or is damaged, so the run cannot be resumed."""

    code = "run-not-resumable"


def of_the_machine(error: BaseException) -> CoterieError | None:
    """What the machine has refused, memory or a file, in words; None for any other error, which is a defect."""
    short = isinstance(error, OSError) and error.errno == errno.ENOMEM
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if short or of_torch or isinstance(error, MemoryError):
        return CoterieError(
            "the memory is not enough; end other programs, or use fewer workers, a smaller model or smaller batches",
            code="memory",
        )
    # A library in C that did not notice that it got no memory: CPython says that it failed without saying why, or that
    # it went on all the same; and ctypes says it in its own words.
    unnoticed = isinstance(error, SystemError) and re.search("(exception set|setting an exception)$", str(error))
    if unnoticed or (type(error).__module__ == "ctypes" and "MemoryError" in str(error)):
        return CoterieError(
            f"a library failed ({error}); most often the memory is not enough: end other programs, or use fewer "
            "workers, a smaller model or smaller batches",
            code="memory",
        )
    if not isinstance(error, OSError) or isinstance(error, ConnectionError) or error.errno is None:
        return None
    where = f"{error.filename}: " if error.filename is not None else ""
    return CoterieError(f"{where}the system refused an operation ({error.strerror})", code="disk-failed")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


# Names in other libraries.
ALSO_CALLED = {
    "lr": ("learning_rate", "eta", "step_size", "client_lr", "local_lr"),
    "batch": ("batch_size", "bs", "local_batch_size"),
    "epochs": ("local_epochs", "n_epochs", "num_epochs"),
    "steps": ("local_steps", "n_steps", "num_steps"),
    "optimizer": ("optimiser",),
    "weight_decay": ("wd", "l2"),
    "k": ("clusters", "n_clusters", "num_clusters", "nclusters"),
    "rounds": ("n_rounds", "num_rounds", "global_rounds", "comm_rounds", "iterations"),
    "participation": ("fraction", "fraction_fit", "client_fraction", "sample_rate", "join_ratio", "clients_per_round"),
    "seed": ("random_state", "random_seed"),
    "workers": ("n_jobs", "num_workers", "processes", "cores"),
    "clients": ("n_clients", "num_clients"),
    "outputs": ("n_classes", "num_classes", "classes"),
    "federation": ("data", "dataset"),
    "out": ("output", "out_dir", "output_dir", "run_dir"),
    "test": ("test_size", "test_share"),
}
_MEANT = {_plain(word): name for name, words in ALSO_CALLED.items() for word in words}
# Keys that users expect, but that are called otherwise.
_DEVICE = " Where clients are computed is `device`: auto, cpu, cuda, cuda:1, mps or xpu."
NOT_THERE = dict.fromkeys(
    ("device", "devices", "cuda", "gpu", "gpus", "usegpu", "usecuda", "ngpus", "numgpus"), _DEVICE
)


def suggest(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' when a known name is near, and the list of the known ones."""
    options = sorted(known)
    written, plain = _plain(name), {_plain(option): option for option in reversed(options)}
    if written in NOT_THERE and written not in plain:
        return NOT_THERE[written]
    meant = _MEANT.get(written)
    near = [meant] if meant in options and written not in plain else []
    near = near or [plain[one] for one in difflib.get_close_matches(written, list(plain), n=1, cutoff=0.55)]
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{hint} Known: {', '.join(options)}." if options else hint
