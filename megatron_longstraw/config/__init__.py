"""The configuration of a run: its keys, how it is read, which combinations make sense. Imports no torch."""
