"""Canvases and a strategy that several files with tests of the loop share."""

from dapd import Selection
from reference.ours import blank
from reference.scripted import Scripted, rising


def canvas(n_new=6, *prompts, model=None):
    return blank(model or Scripted(rising), list(prompts) or [[1, 2]], n_new)


def positions(step):
    """What a step committed, by place in the window."""
    return step.commit.nonzero().flatten().tolist()


def unequal():
    """Two rows of two blocks; the first has one mask less in its first block."""
    first, second = canvas(4, [1, 2, 3], [4])
    return [first.fix({4: 5}), second]


class Leftmost:
    """A user's own strategy: nothing but `select`."""

    def select(self, seen, memory=None):
        return Selection(seen.masked & (seen.masked.cumsum(-1) == 1))
