"""The viewer: traces as one page that plays them. Its front end in `static` is plain modules for any page."""

from dapd.viewer.compact import live, packed_graph
from dapd.viewer.page import MODULES, head_of, read, render, shell, write_page

__all__ = ["MODULES", "head_of", "live", "packed_graph", "read", "render", "shell", "write_page"]
