"""The constraint of a form: at every pass the most probable text of that form, given what is committed.

That text is a witness. It agrees with every committed token, so whatever part of it a decoder commits, the witness
itself still completes the canvas, and the next pass has a witness, too. No decoder can lead into a dead end, and the
last canvas is a text of the form. Where only one token fits, it is committed without asking the decoder: see
`dapd.decoding.row.Row`.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.forms.automaton import START, Automaton, Floats

FORBIDDEN = -1e9
"""The score of a token that the settings forbid. It is finite because the form comes first: where no other token fits,
a forbidden one is used."""
MOST_WORK = 50_000_000
"""Edges of an automaton times new tokens that are allowed. Every pass looks at all of them, which takes about a second
at this limit, and rows that share the pass wait for it."""


class Language:
    """All texts of a form, each followed by EOS up to the end of the canvas."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self._kind_of = torch.from_numpy(automaton.kind_of)

    def check(self, canvas: Canvas) -> None:
        """Refuse a canvas that no text of the form fits into."""
        if canvas.n_new is None:
            raise DapdError("a form (regex, json_schema) is for a generated text, not for a template")
        shortest = self.automaton.shortest
        if shortest is None:
            raise DapdError("the model's tokens cannot spell any text of this form")
        if shortest > canvas.n_new:
            raise DapdError(f"the form needs at least {shortest} tokens; max_new_tokens is {canvas.n_new}")
        edges = len(self.automaton.source)
        if edges * canvas.n_new > MOST_WORK:
            raise DapdError(
                f"the form is too complicated for {canvas.n_new} new tokens: it has {edges} edges; allowed: "
                f"{MOST_WORK // canvas.n_new}"
            )
        free = np.zeros((int(canvas.masked[canvas.start :].sum()), self.automaton.n_kinds))
        if not np.isfinite(self._sums(canvas, self._scores(canvas, free))[-1][self.automaton.accepting]).any():
            raise DapdError("the tokens that were fixed beforehand do not fit the form")

    def tokens(self, scores: Float[Tensor, "n vocab"], canvas: Canvas, window: slice) -> Int[Tensor, " n"]:
        """The tokens of the witness in the window; see `dapd.decoding.Constraint.tokens`."""
        device = scores.device
        kind_of = self._kind_of.to(device)
        masked = canvas.masked
        own = torch.arange(window.start, window.stop) >= canvas.start
        seen = (masked[window] & own).nonzero().flatten()
        asked = scores[seen.to(device)]
        # Scores with noise are in double precision, but forbidden tokens may have the lowest number of single
        # precision: of the two types' lowest numbers, the one nearer to zero decides which scores mean forbidden.
        lowest = max(torch.finfo(asked.dtype).min, torch.finfo(torch.float32).min) / 2
        cost = torch.where((asked > lowest) | asked.isnan(), asked, FORBIDDEN)
        best = cost.new_full((len(seen), self.automaton.n_kinds), -torch.inf)
        best = best.scatter_reduce(1, kind_of.expand(len(seen), -1), cost, "amax")
        # Masks outside of the window are not predicted in this pass: every token that fits there has the same score, 0.
        free = torch.zeros(int(masked[canvas.start :].sum()), self.automaton.n_kinds, dtype=torch.float64)
        place = masked[canvas.start :].cumsum(0) - 1
        free[place[seen + window.start - canvas.start]] = best.double().cpu()
        kinds = self._witness(canvas, free.numpy())
        found = scores.argmax(-1)
        if kinds is None:  # some scores are nan, which the row reports as an error
            return found
        chosen = torch.from_numpy(kinds)[seen + window.start - canvas.start].to(device)
        inside = torch.where(kind_of == chosen[:, None], cost, -torch.inf)
        found[seen.to(device)] = inside.argmax(-1)
        return found

    def forced(self, canvas: Canvas, window: slice) -> Bool[Tensor, " n"]:
        """The masks of the window where only one token fits; see `dapd.decoding.Constraint.forced`."""
        free = np.zeros((int(canvas.masked[canvas.start :].sum()), self.automaton.n_kinds))
        scores = self._scores(canvas, free)
        sums = self._sums(canvas, scores)
        edges = self.automaton
        forced = torch.zeros(canvas.length, dtype=torch.bool)
        masked = canvas.masked[canvas.start :].tolist()
        reached = np.isfinite(sums)
        allowed = np.isfinite(scores)
        alive = np.isin(np.arange(edges.n_states), edges.accepting)
        for place in range(len(scores) - 1, -1, -1):
            used = reached[place][edges.source] & allowed[place][edges.kind] & alive[edges.target]
            if masked[place]:
                kinds = edges.kind[used]
                alone = len(kinds) > 0 and bool((kinds == kinds[0]).all() and edges.is_single[kinds[0]])
                forced[canvas.start + place] = alone
            alive = np.zeros(edges.n_states, dtype=bool)
            alive[edges.source[used]] = True
        return (forced & canvas.masked)[window]

    def _scores(self, canvas: Canvas, free: Floats) -> Floats:
        """The score of each class at each position of the generated region, where `free` holds those of the masks.

        A committed token allows only its own class, with the score 0.
        """
        region = canvas.tokens[canvas.start :].numpy()
        masked = canvas.masked[canvas.start :].numpy()
        scores = np.full((len(region), self.automaton.n_kinds), -np.inf)
        scores[masked] = free
        scores[~masked, self.automaton.kind_of[region[~masked]]] = 0.0
        return scores

    def _sums(self, canvas: Canvas, scores: Floats) -> Floats:
        """The best sum of scores that reaches each state, before the first position and after each one."""
        sums = np.full((len(scores) + 1, self.automaton.n_states), -np.inf)
        sums[0, START] = 0.0
        for place, row in enumerate(scores):
            sums[place + 1] = self.automaton.advance(sums[place], row)
        return sums

    def _witness(self, canvas: Canvas, free: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """The class of each token of the best text of the form, by position; None where a score is nan."""
        if np.isnan(free).any():
            return None
        scores = self._scores(canvas, free)
        sums = self._sums(canvas, scores)
        ends = self.automaton.accepting
        state = int(ends[np.argmax(sums[-1][ends])])
        assert np.isfinite(sums[-1][state]), "a witness always exists: it did before the last commit"
        kinds = np.zeros(len(scores), dtype=np.int64)
        for place in range(len(scores) - 1, -1, -1):
            state, kinds[place] = self.automaton.edge_into(state, sums[place], scores[place])
        return kinds
