"""A run as a page of HTML: what its folder tells, while it trains, when it is done, or after it was killed.

Reads files alone: no device, no trainer, nothing that the run does not keep. All that is read may be half there, or
somebody else's, and is shown as text.
"""

from trainer.report.page import page, write_report

__all__ = ["page", "write_report"]
