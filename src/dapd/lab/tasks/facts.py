"""The facts that the model is trained on: relations with one right answer, of one or more words, per subject."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """A kind of fact: how it is named, how people ask for it, and what is true."""

    phrase: str
    """A noun phrase for the thing asked for; `{x}` is the subject."""
    asks: tuple[str, ...]
    """Ways to ask; the first one is always good English, whatever the subject."""
    known: dict[str, str]
    """Subject -> the one right answer."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> dict[str, str]:
    """Parse `subject/answer` pairs, which are separated by line ends or semicolons."""
    entries = [entry.strip() for line in text.strip().splitlines() for entry in line.split(";")]
    pairs = [entry.split("/") for entry in entries if entry]
    return {subject.strip(): answer.strip() for subject, answer in pairs}


CAPITALS = _pairs(
    """France/Paris; Italy/Rome; Spain/Madrid; Portugal/Lisbon; Germany/Berlin; Austria/Vienna; Poland/Warsaw
    Greece/Athens; Norway/Oslo; Sweden/Stockholm; Finland/Helsinki; Denmark/Copenhagen; Ireland/Dublin
    Hungary/Budapest; Russia/Moscow; Egypt/Cairo; Kenya/Nairobi; Ghana/Accra; Morocco/Rabat; Senegal/Dakar
    Japan/Tokyo; China/Beijing; Thailand/Bangkok; Vietnam/Hanoi; Nepal/Kathmandu; Iran/Tehran; Iraq/Baghdad
    Canada/Ottawa; Cuba/Havana; Peru/Lima; Chile/Santiago; Ecuador/Quito; Colombia/Bogota; Venezuela/Caracas
    Argentina/Buenos Aires; Mexico/Mexico City; Brazil/Brasilia; India/New Delhi; Australia/Canberra; Turkey/Ankara
    South Korea/Seoul; Saudi Arabia/Riyadh; Ethiopia/Addis Ababa; Panama/Panama City; Malaysia/Kuala Lumpur
    Costa Rica/San Jose; New Zealand/Wellington; Guatemala/Guatemala City; Belgium/Brussels; Romania/Bucharest
    Bulgaria/Sofia; Iceland/Reykjavik; Jordan/Amman; Mongolia/Ulan Bator; Uruguay/Montevideo; Jamaica/Kingston
    Tunisia/Tunis; Algeria/Algiers; Uganda/Kampala; Zambia/Lusaka"""
)

_CONTINENTS = {
    "Europe": """France Italy Spain Portugal Germany Austria Poland Greece Norway Sweden Finland Denmark Ireland Hungary
        Belgium Romania Bulgaria Iceland""",
    "Africa": "Egypt Kenya Ghana Morocco Senegal Ethiopia Tunisia Algeria Uganda Zambia",
    "Asia": "Japan China India Thailand Vietnam Nepal Iran Iraq Malaysia Jordan Mongolia",
    "North America": "Canada Mexico Cuba Panama Jamaica",
    "South America": "Peru Chile Ecuador Colombia Venezuela Argentina Brazil Uruguay",
}
CONTINENTS = {country: name for name, countries in _CONTINENTS.items() for country in countries.split()}

_CURRENCIES = {
    "the euro": "France Italy Spain Portugal Germany Austria Greece Finland Ireland Belgium",
}
CURRENCIES = {
    **{country: name for name, countries in _CURRENCIES.items() for country in countries.split()},
    **_pairs(
        """Japan/the yen; China/the yuan; India/the Indian rupee; Russia/the ruble; Sweden/the Swedish krona
        Norway/the Norwegian krone; Denmark/the Danish krone; Iceland/the Icelandic krona; Poland/the zloty
        Hungary/the forint; Mexico/the Mexican peso; Chile/the Chilean peso; Argentina/the Argentine peso
        Canada/the Canadian dollar; Australia/the Australian dollar; Brazil/the real; Thailand/the baht
        Vietnam/the dong; Turkey/the Turkish lira; Egypt/the Egyptian pound; Kenya/the Kenyan shilling; Peru/the sol
        Ghana/the cedi; Romania/the leu; South Korea/the won; New Zealand/the New Zealand dollar"""
    ),
}

LANGUAGES = _pairs(
    """Brazil/Portuguese; Portugal/Portuguese; Mexico/Spanish; Argentina/Spanish; Chile/Spanish; Cuba/Spanish
    Colombia/Spanish; Spain/Spanish; Egypt/Arabic; Iraq/Arabic; Jordan/Arabic; Iran/Persian; Japan/Japanese
    China/Chinese; Austria/German; Germany/German; Russia/Russian; Greece/Greek; Poland/Polish; Hungary/Hungarian
    Sweden/Swedish; Turkey/Turkish; Denmark/Danish; France/French; Italy/Italian; Thailand/Thai; Vietnam/Vietnamese
    Jamaica/English; Australia/English; Iceland/Icelandic; Norway/Norwegian; Romania/Romanian; Mongolia/Mongolian
    South Korea/Korean"""
)

OPPOSITES = _pairs(
    """hot/cold; big/small; tall/short; fast/slow; rich/poor; wet/dry; hard/soft; full/empty; loud/quiet; old/young
    clean/dirty; happy/sad; light/dark; strong/weak; early/late; open/closed; sweet/bitter; near/far; thick/thin
    smooth/rough; deep/shallow; wide/narrow; brave/timid; calm/angry"""
)

COLORS = _pairs(
    """grass/green; snow/white; coal/black; blood/red; gold/yellow; the sky/blue; chocolate/brown; milk/white
    a lemon/yellow; a tomato/red; spinach/green; ash/gray; a carrot/orange; lavender/purple; a flamingo/pink
    soot/black"""
)

YOUNG = _pairs(
    """a dog/a puppy; a cat/a kitten; a cow/a calf; a horse/a foal; a sheep/a lamb; a goat/a kid; a pig/a piglet
    a duck/a duckling; a goose/a gosling; a bear/a cub; a deer/a fawn; a frog/a tadpole; an owl/an owlet; a hen/a chick
    a kangaroo/a joey; a hare/a leveret"""
)

PLURALS = _pairs(
    """mouse/mice; child/children; man/men; woman/women; foot/feet; tooth/teeth; goose/geese; ox/oxen; leaf/leaves
    knife/knives; wolf/wolves; city/cities; baby/babies; box/boxes; bus/buses; tomato/tomatoes; hero/heroes; loaf/loaves
    half/halves; fox/foxes; person/people"""
)

PASTS = _pairs(
    """go/went; see/saw; eat/ate; run/ran; write/wrote; take/took; give/gave; buy/bought; think/thought; sing/sang
    swim/swam; drink/drank; teach/taught; catch/caught; bring/brought; speak/spoke; break/broke; fly/flew; know/knew
    grow/grew; find/found; tell/told; sell/sold; keep/kept; sleep/slept; leave/left; make/made; build/built; send/sent
    win/won"""
)

AUTHORS = _pairs(
    """Hamlet/William Shakespeare; Macbeth/William Shakespeare; Faust/Johann Wolfgang von Goethe
    War and Peace/Leo Tolstoy; Anna Karenina/Leo Tolstoy; Don Quixote/Miguel de Cervantes; Moby Dick/Herman Melville
    Emma/Jane Austen; Pride and Prejudice/Jane Austen; Jane Eyre/Charlotte Bronte; Wuthering Heights/Emily Bronte
    Oliver Twist/Charles Dickens; David Copperfield/Charles Dickens; Frankenstein/Mary Shelley; Dracula/Bram Stoker
    Ulysses/James Joyce; Crime and Punishment/Fyodor Dostoevsky; The Trial/Franz Kafka; The Stranger/Albert Camus
    Les Miserables/Victor Hugo; Treasure Island/Robert Louis Stevenson; Robinson Crusoe/Daniel Defoe
    Walden/Henry David Thoreau; Animal Farm/George Orwell; Brave New World/Aldous Huxley; Peter Pan/James Barrie
    The Jungle Book/Rudyard Kipling; The Odyssey/Homer; The Iliad/Homer; Candide/Voltaire; Middlemarch/George Eliot
    The Time Machine/Herbert George Wells"""
)

PAINTERS = _pairs(
    """the Mona Lisa/Leonardo da Vinci; the Last Supper/Leonardo da Vinci; the Night Watch/Rembrandt
    Guernica/Pablo Picasso; the Starry Night/Vincent van Gogh; the Scream/Edvard Munch
    the Birth of Venus/Sandro Botticelli; Las Meninas/Diego Velazquez; the Kiss/Gustav Klimt
    the Milkmaid/Johannes Vermeer"""
)

INVENTORS = _pairs(
    """the telephone/Alexander Graham Bell; dynamite/Alfred Nobel; the printing press/Johannes Gutenberg
    the diesel engine/Rudolf Diesel; the lightning rod/Benjamin Franklin; the phonograph/Thomas Edison
    the battery/Alessandro Volta; the cotton gin/Eli Whitney; the polio vaccine/Jonas Salk"""
)

DISCOVERERS = _pairs(
    """penicillin/Alexander Fleming; radium/Marie Curie; the electron/Joseph John Thomson; the neutron/James Chadwick
    Uranus/William Herschel; Pluto/Clyde Tombaugh; insulin/Frederick Banting; the moons of Jupiter/Galileo Galilei"""
)

SYMBOLS = _pairs(
    """gold/Au; silver/Ag; iron/Fe; copper/Cu; lead/Pb; tin/Sn; sodium/Na; potassium/K; mercury/Hg; carbon/C; oxygen/O
    nitrogen/N; hydrogen/H; helium/He; neon/Ne; zinc/Zn; calcium/Ca; silicon/Si; chlorine/Cl; aluminum/Al; sulfur/S
    tungsten/W; uranium/U; nickel/Ni; magnesium/Mg"""
)

EXTREMES = _pairs(
    """the largest ocean/the Pacific Ocean; the smallest ocean/the Arctic Ocean; the highest mountain/Mount Everest
    the highest mountain in Africa/Mount Kilimanjaro; the highest mountain in Europe/Mount Elbrus
    the longest river in Africa/the Nile; the longest river in Europe/the Volga; the longest river in Asia/the Yangtze
    the largest country/Russia; the smallest country/Vatican City; the largest continent/Asia
    the smallest continent/Australia; the largest planet/Jupiter; the smallest planet/Mercury; the hottest planet/Venus
    the largest animal/the blue whale; the tallest animal/the giraffe; the fastest land animal/the cheetah
    the largest land animal/the African elephant; the largest bird/the ostrich; the largest island/Greenland
    the deepest lake/Lake Baikal; the largest hot desert/the Sahara; the hardest natural mineral/diamond
    the lightest element/hydrogen; the closest star to Earth/the Sun; the largest organ of the body/the skin
    the longest bone of the body/the femur"""
)

LEGS = _pairs(
    """a spider/eight; an ant/six; a bee/six; a beetle/six; a dog/four; a horse/four; a hen/two; a duck/two; a crab/ten
    a lobster/ten; a scorpion/eight; a frog/four"""
)

SIDES = _pairs(
    """a triangle/three; a square/four; a pentagon/five; a hexagon/six; a heptagon/seven; an octagon/eight
    a nonagon/nine; a decagon/ten"""
)

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
PLANETS = _words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")


def _next(names: tuple[str, ...], *, around: bool) -> dict[str, str]:
    """Each name with the one that follows it; `around`: the first follows the last."""
    after = names[1:] + (names[:1] if around else ())
    return dict(zip(names, after, strict=False))


def _previous(names: tuple[str, ...], *, around: bool) -> dict[str, str]:
    return {later: earlier for earlier, later in _next(names, around=around).items()}


RELATIONS = {
    "capital": Relation(
        "the capital of {x}",
        ("What is the capital of {x}?", "Which city is the capital of {x}?", "Can you tell me the capital of {x}?"),
        CAPITALS,
    ),
    "continent": Relation(
        "the continent of {x}", ("Which continent is {x} in?", "On which continent is {x}?"), CONTINENTS
    ),
    "currency": Relation(
        "the currency of {x}", ("What is the currency of {x}?", "What do people pay with in {x}?"), CURRENCIES
    ),
    "language": Relation(
        "the main language of {x}",
        ("What is the main language of {x}?", "Which language do most people speak in {x}?"),
        LANGUAGES,
    ),
    "opposite": Relation(
        "the opposite of {x}",
        ("What is the opposite of {x}?", "Which word is the opposite of {x}?"),
        {**OPPOSITES, **{answer: word for word, answer in OPPOSITES.items()}},
    ),
    "color": Relation("the color of {x}", ("What is the color of {x}?", "Which color does {x} have?"), COLORS),
    "young": Relation("the young of {x}", ("What do we call the young of {x}?",), YOUNG),
    "plural": Relation("the plural of {x}", ("What is the plural of {x}?",), PLURALS),
    "past": Relation("the past tense of {x}", ("What is the past tense of {x}?",), PASTS),
    "author": Relation("the author of {x}", ("Who wrote {x}?", "Who is the author of {x}?"), AUTHORS),
    "painter": Relation("the painter of {x}", ("Who painted {x}?", "Who is the painter of {x}?"), PAINTERS),
    "inventor": Relation("the inventor of {x}", ("Who invented {x}?", "Who is the inventor of {x}?"), INVENTORS),
    "discoverer": Relation("the discoverer of {x}", ("Who discovered {x}?",), DISCOVERERS),
    "symbol": Relation("the chemical symbol of {x}", ("What is the chemical symbol of {x}?",), SYMBOLS),
    "extreme": Relation("{x}", ("What is {x}?", "Can you tell me {x}?"), EXTREMES),
    "legs": Relation("the number of legs of {x}", ("How many legs does {x} have?",), LEGS),
    "sides": Relation("the number of sides of {x}", ("How many sides does {x} have?",), SIDES),
    "day after": Relation(
        "the day after {x}", ("Which day comes after {x}?", "What is the day after {x}?"), _next(DAYS, around=True)
    ),
    "day before": Relation(
        "the day before {x}",
        ("Which day comes before {x}?", "What is the day before {x}?"),
        _previous(DAYS, around=True),
    ),
    "month after": Relation(
        "the month after {x}",
        ("Which month comes after {x}?", "What is the month after {x}?"),
        _next(MONTHS, around=True),
    ),
    "month before": Relation(
        "the month before {x}",
        ("Which month comes before {x}?", "What is the month before {x}?"),
        _previous(MONTHS, around=True),
    ),
    "planet after": Relation("the planet after {x}", ("Which planet comes after {x}?",), _next(PLANETS, around=False)),
}
"""Name -> relation. A relation is drawn first and a subject of it second."""
