"""What the process ends with, where it is not 0."""

FAILED, WRONG_INPUT, PERMANENT, SIGNALLED = 1, 2, 3, 128
"""A failure of the machine; what a user can mend; a run that would fail the same way again; a signal, whose number is
added."""
NOT_AGAIN = (WRONG_INPUT, PERMANENT)
"""Of these, what no restart helps against."""
