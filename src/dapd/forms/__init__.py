"""Prescribed forms: regular expressions and JSON Schemas that a text is certain to match, whatever the decoder."""

from dapd.forms.automaton import Automaton
from dapd.forms.building import LIMITS, BuildLimits, build
from dapd.forms.language import Language
from dapd.forms.schema import as_json, check_schema

__all__ = ["LIMITS", "Automaton", "BuildLimits", "Language", "as_json", "build", "check_schema"]
