"""The multi-question analysis: five independent questions of TriviaQA in one prompt."""

from dapd.evaluation.multi_question.analysis import Behaviour, as_trace, behaviour
from dapd.evaluation.multi_question.questions import Bundle, Question, ask, bundles, is_simple, read_questions
from dapd.evaluation.multi_question.run import METHODS, SWEEPS, MethodResult, as_json, evaluate, summarise
from dapd.evaluation.multi_question.scoring import answer_of, score, segments

__all__ = [
    "METHODS",
    "SWEEPS",
    "Behaviour",
    "Bundle",
    "MethodResult",
    "Question",
    "answer_of",
    "as_json",
    "as_trace",
    "ask",
    "behaviour",
    "bundles",
    "evaluate",
    "is_simple",
    "read_questions",
    "score",
    "segments",
    "summarise",
]
