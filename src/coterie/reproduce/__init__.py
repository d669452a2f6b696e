"""The papers' tables run again: their number beside ours, with the protocol, by one command."""
