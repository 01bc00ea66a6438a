"""A plan as a page of HTML, with pictures: one file for all of it, or a fragment for a notebook.

Nothing is loaded when it is read, no script runs, and the same plan gives the same bytes. What the numbers are is
decided elsewhere; here they are only laid out.
"""

from trainer.planner.report.page import fragment, page

__all__ = ["fragment", "page"]
