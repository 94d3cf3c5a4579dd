"""Scores of free text: ROUGE-L and BLEU, and the tools that only some users have (LanguageTool, BERTScore)."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dapd.errors import missing_extra


@functools.cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise missing_extra("rouge-score", "eval", "ROUGE-L") from None
    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of stemmed words."""
    return float(_rouge().score(reference, text)["rougeL"].fmeasure)


@functools.cache
def _bleu() -> Any:
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise missing_extra("sacrebleu", "eval", "BLEU") from None
    return BLEU(smooth_method="none", tokenize="13a")


def bleu(text: str, reference: str) -> float:
    """BLEU of one text against one reference, n-grams up to four, without smoothing: 0 where an order has no match."""
    # As a corpus of one text: sacrebleu's score of a sentence recommends another formula at every call.
    return min(1.0, float(_bleu().corpus_score([text], [[reference]]).score) / 100)


@dataclass
class Tools:
    """LanguageTool and BERTScore where they are installed. `missing` says why a part is not scored."""

    check: Callable[[str], int] | None = None
    """Number of complaints about a text."""
    similarity: Callable[[str, str], float] | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls) -> Tools:
        """The tools that are installed on this machine and start."""
        tools = cls()
        for name, package, start in (
            ("grammar", "language_tool_python", _language_tool),
            ("bertscore", "bert_score", _bert_score),
        ):
            if importlib.util.find_spec(package) is None:
                tools.missing[name] = f"the package {package} is not installed"
                continue
            try:
                setattr(tools, {"grammar": "check", "bertscore": "similarity"}[name], start())
            except Exception as error:  # Java, a download or the model may be missing: then the part is not scored
                reason = (str(error) or type(error).__name__).splitlines()[0]
                tools.missing[name] = f"{package} did not start: {reason}"
        return tools

    def grammar(self, text: str) -> float | None:
        """1 where LanguageTool finds nothing; None without LanguageTool."""
        if not text.strip():
            return 0.0
        return None if self.check is None else float(self.check(text.strip()) == 0)

    def bertscore(self, text: str, reference: str) -> float | None:
        return None if self.similarity is None else self.similarity(text, reference)


def _language_tool() -> Callable[[str], int]:
    import language_tool_python

    tool = language_tool_python.LanguageTool("en-US")
    return lambda text: len(tool.check(text))


def _bert_score() -> Callable[[str, str], float]:
    import bert_score

    scorer = bert_score.BERTScorer(lang="en")
    return lambda text, reference: float(scorer.score([text], [reference])[2][0])
