"""The closed world the tasks speak of: names, things, and the words of the small grammars."""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("/") for pair in text.split())


NAMES = _words(
    """Ada Alma Amir Anna Arlo Asha Axel Bela Boris Bruno Carla Cleo Cora Cyrus Dana Dario Diego Dora Edda Egon Elena
    Elif Emil Enzo Erik Eva Fabio Farah Felix Fiona Frida Gita Greta Gustav Hana Hugo Ida Igor Ines Iris Ivan
    Jada Jonas Juno Kai Karim Kira Lars Leila Lena Leo Lia Luca Malik Mara Marek Maya Mila Milo Nadia Nero Nils
    Nora Olaf Olga Omar Oskar Paula Petra Pia Quinn Rafa Rhea Rosa Ruben Salma Sasha Selma Sven Tara Theo Tilda
    Uma Vera Viktor Wanda Yara Yusuf Zara Zeno"""
)

THINGS = _words("apples books coins cards eggs pens shells stamps stones tickets candles buttons")
"""Things that people own in the word problems."""

NOUNS = _pairs(
    """artist/artists baker/bakers child/children doctor/doctors driver/drivers elephant/elephants
    farmer/farmers fox/foxes guard/guards hunter/hunters king/kings lion/lions man/men monkey/monkeys mouse/mice
    neighbor/neighbors officer/officers otter/otters painter/painters pilot/pilots queen/queens rabbit/rabbits
    sailor/sailors singer/singers soldier/soldiers student/students teacher/teachers tiger/tigers uncle/uncles
    woman/women"""
)
"""The plural of every noun, by its singular."""

VERBS = _pairs(
    """admire/admires call/calls chase/chases draw/draws feed/feeds follow/follows greet/greets
    guide/guides hear/hears help/helps know/knows meet/meets miss/misses paint/paints praise/praises push/pushes
    remember/remembers see/sees teach/teaches thank/thanks trust/trusts visit/visits warn/warns watch/watches"""
)
"""Plural form -> third person singular."""


@dataclass(frozen=True)
class Kind:
    """The words for a kind of character."""

    plural: str
    pronoun: str
    """Pronoun for one character of this kind; that for several is `they`."""


CHARACTERS = {
    noun: Kind(plural, pronoun)
    for pronoun, kinds in {
        "he": "king/kings uncle/uncles man/men boy/boys prince/princes wizard/wizards monk/monks",
        "she": "queen/queens aunt/aunts woman/women girl/girls princess/princesses witch/witches nun/nuns",
        "it": "fox/foxes lion/lions mouse/mice owl/owls otter/otters elephant/elephants dragon/dragons horse/horses",
    }.items()
    for noun, plural in _pairs(kinds).items()
}
"""The characters of the scenes: noun -> its plural and its pronoun."""

# A word that begins with a vowel letter takes "an": words whose sound says otherwise (honest, useful) stay out.
ADJECTIVES = _words(
    """angry brave busy clever curious eager elegant famous friendly gentle idle important jolly kind lonely modest
    odd polite proud serious shy tired ugly wise"""
)
PLACES = _words("bridge castle forest garden harbor island lake market museum palace river school station village")
PREPOSITIONS = _words("near behind beside at")
ADVERBS = _words("often quietly today gladly tomorrow slowly rarely always")
