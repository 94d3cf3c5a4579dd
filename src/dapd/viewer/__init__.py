"""The viewer: traces as one page that plays them. Its front end lies in `static`, plain modules for any page."""

from dapd.viewer.compact import live
from dapd.viewer.page import MOST, head_of, render, write_page

__all__ = ["MOST", "head_of", "live", "render", "write_page"]
