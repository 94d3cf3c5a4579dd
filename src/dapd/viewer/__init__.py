"""The viewer: traces as one page that plays them. Its front end lies in `static`, plain modules for any page."""

from dapd.viewer.page import MOST, render, write_page

__all__ = ["MOST", "render", "write_page"]
