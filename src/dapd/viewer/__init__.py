"""The viewer: traces as one page that plays them. Its front end lies in `static`, plain modules for any page."""

from dapd.viewer.page import render, write_page

__all__ = ["render", "write_page"]
