"""The closed world the tasks speak of: names, facts, and the words of the small grammar."""

from __future__ import annotations


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

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Germany": "Berlin",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Hungary": "Budapest", "Russia": "Moscow",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Senegal": "Dakar",
    "Japan": "Tokyo", "China": "Beijing", "Thailand": "Bangkok", "Vietnam": "Hanoi",
    "Nepal": "Kathmandu", "Iran": "Tehran", "Iraq": "Baghdad", "Canada": "Ottawa", "Cuba": "Havana",
    "Peru": "Lima", "Chile": "Santiago", "Ecuador": "Quito", "Colombia": "Bogota", "Venezuela": "Caracas",
}  # fmt: skip

CONTINENTS = {
    "Europe": "France Italy Spain Portugal Germany Austria Poland Greece Norway Sweden Finland Denmark Ireland Hungary",
    "Africa": "Egypt Kenya Ghana Morocco Senegal",
    "Asia": "Japan China India Thailand Vietnam Nepal Iran Iraq",
}

OPPOSITES = _pairs(
    """hot/cold big/small tall/short fast/slow rich/poor wet/dry hard/soft full/empty loud/quiet old/young
    clean/dirty happy/sad light/dark strong/weak early/late open/closed sweet/bitter near/far thick/thin smooth/rough
    deep/shallow wide/narrow brave/timid calm/angry"""
)

COLORS = {
    "grass": "green", "snow": "white", "coal": "black", "blood": "red", "gold": "yellow", "sky": "blue",
    "chocolate": "brown", "milk": "white", "lemon": "yellow", "tomato": "red", "spinach": "green", "ash": "gray",
    "carrot": "orange", "lavender": "purple", "flamingo": "pink", "soot": "black",
}  # fmt: skip

YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "goat": "kid", "pig": "piglet",
    "duck": "duckling", "goose": "gosling", "bear": "cub", "deer": "fawn", "frog": "tadpole", "owl": "owlet",
    "hen": "chick", "kangaroo": "joey", "hare": "leveret",
}  # fmt: skip

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")


def _facts() -> dict[str, dict[str, str]]:
    """Relation -> subject -> the one right answer; a relation reads `the capital of`, before its subject."""
    both = {**OPPOSITES, **{b: a for a, b in OPPOSITES.items()}}
    facts = {
        "the capital of": CAPITALS,
        "the continent of": {country: c for c, countries in CONTINENTS.items() for country in countries.split()},
        "the opposite of": both,
        "the color of": COLORS,
        "the young of": YOUNG,
    }
    for kind, names in (("day", DAYS), ("month", MONTHS)):
        facts[f"the {kind} after"] = dict(zip(names, names[1:] + names[:1], strict=True))
        facts[f"the {kind} before"] = dict(zip(names[1:] + names[:1], names, strict=True))
    return facts


FACTS = _facts()

THINGS = _words("apples books coins cards eggs pens shells stamps stones tickets candles buttons")
"""What people of the word problems own."""

NOUNS = _pairs(
    """artist/artists baker/bakers child/children doctor/doctors driver/drivers elephant/elephants
    farmer/farmers fox/foxes guard/guards hunter/hunters king/kings lion/lions man/men monkey/monkeys mouse/mice
    neighbor/neighbors officer/officers otter/otters painter/painters pilot/pilots queen/queens rabbit/rabbits
    sailor/sailors singer/singers soldier/soldiers student/students teacher/teachers tiger/tigers uncle/uncles
    woman/women"""
)
"""Singular -> plural."""

VERBS = _pairs(
    """admire/admires call/calls chase/chases draw/draws feed/feeds follow/follows greet/greets
    guide/guides hear/hears help/helps know/knows meet/meets miss/misses paint/paints praise/praises push/pushes
    remember/remembers see/sees teach/teaches thank/thanks trust/trusts visit/visits warn/warns watch/watches"""
)
"""Plural form -> third person singular."""

# A word that begins with a vowel letter takes "an": words whose sound says otherwise (honest, useful) stay out.
ADJECTIVES = _words(
    """angry brave busy clever curious eager elegant famous friendly gentle idle important jolly kind lonely modest
    odd polite proud serious shy tired ugly wise"""
)
PLACES = _words("bridge castle forest garden harbor island lake market museum palace river school station village")
PREPOSITIONS = _words("near behind beside at")
ADVERBS = _words("often quietly today gladly tomorrow slowly rarely always")
