"""What the people of the made traces ask: short questions, and long documents with a question about each.

A short question is one line, `text | answers | an earlier wording => its place in the text | its answers`. A small
instruction model can answer them. The long documents are composed of sentences by a seed; in the middle of each
stands the one sentence that its question is about.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["DOCUMENTS", "FOLLOW_UPS", "QUESTIONS", "Document", "Question", "compose"]

_QUESTIONS = """
What is the capital of France? | Paris | Italy => France | Rome
What is the capital of Japan? | Tokyo | China => Japan | Beijing
What is the capital of Germany? | Berlin | Austria => Germany | Vienna
Which country is the city of Madrid in? | Spain | Lisbon => Madrid | Portugal
Which country is the city of Cairo in? | Egypt | Nairobi => Cairo | Kenya
Which continent is Brazil on? | South America | India => Brazil | Asia
Which continent is Kenya on? | Africa | France => Kenya | Europe
Which ocean lies between Europe and America? | Atlantic | Asia => Europe | Pacific
Which planet is closest to the sun? | Mercury | farthest from => closest to | Neptune
Which planet is the largest in our solar system? | Jupiter | smallest => largest | Mercury
How many days are there in a week? | seven, 7 | year => week | 365
How many months are there in a year? | twelve, 12 | days => months | 365
How many hours are there in a day? | 24, twenty-four | week => day | 168
How many minutes are there in an hour? | 60, sixty | seconds => minutes | 3600, 3,600
How many legs does a spider have? | eight, 8 | dog => spider | four, 4
How many legs does a horse have? | four, 4 | hen => horse | two, 2
How many wheels does a bicycle have? | two, 2 | car => bicycle | four, 4
How many sides does a triangle have? | three, 3 | square => triangle | four, 4
How many letters are there in the English alphabet? | 26, twenty-six | vowels => letters | five, 5
What is 2 plus 2? | 4, four | 3 => 2 | 5, five
What is 10 minus 3? | 7, seven | 4 => 3 | 6, six
What is 5 times 5? | 25, twenty-five | 6 => 5 | 30, thirty
What is 12 divided by 4? | 3, three | 6 => 4 | 2, two
What is half of 20? | 10, ten | 30 => 20 | 15, fifteen
What is the double of 8? | 16, sixteen | 9 => 8 | 18, eighteen
Which number comes after 19? | 20, twenty | 29 => 19 | 30, thirty
Which month comes after March? | April | July => March | August
Which day comes after Monday? | Tuesday | Thursday => Monday | Friday
Which day comes before Sunday? | Saturday | after => before | Monday
Which month is the first of the year? | January | last => first | December
What is the opposite of hot? | cold, cool | tall => hot | short, small
What is the opposite of up? | down | left => up | right
What is the opposite of day? | night | light => day | dark
What is the opposite of empty? | full | open => empty | close
What is the plural of mouse? | mice | child => mouse | children
What is the past tense of go? | went | eat => go | ate
What colour do you get when you mix blue and yellow? | green | red => blue | orange
What colour is a ripe banana? | yellow | tomato => banana | red
What colour is the sky on a clear day? | blue | grass => sky | green
What colour is snow? | white | coal => snow | black
Which animal says moo? | cow | woof => moo | dog
Which animal gives us wool? | sheep | honey => wool | bee
What do bees make? | honey | hens => bees | eggs
What do we call a baby dog? | puppy, pup | cat => dog | kitten
What do we call a baby cow? | calf | sheep => cow | lamb
What is frozen water called? | ice | boiling => frozen | steam
What gas do people need to breathe? | oxygen | plants => people | carbon dioxide
At what temperature in Celsius does water boil? | 100, hundred | freeze => boil | 0, zero
Who wrote Romeo and Juliet? | Shakespeare | War and Peace => Romeo and Juliet | Tolstoy
Who painted the Mona Lisa? | Leonardo, Vinci | Guernica => the Mona Lisa | Picasso
Who was the first president of the United States? | Washington | second => first | Adams
Which language is spoken in Brazil? | Portuguese | Mexico => Brazil | Spanish
Which language is spoken in Austria? | German | Egypt => Austria | Arabic
Which currency is used in Japan? | yen | Germany => Japan | euro
What is the chemical symbol for gold? | Au | iron => gold | Fe
What is the chemical formula of water? | H2O, H₂O | table salt => water | NaCl
Which organ pumps blood through the body? | heart | cleans => pumps | kidney
What do we use to see? | eye | hear => see | ear
Which season comes after winter? | spring | summer => winter | autumn, fall
Which meal do people eat in the morning? | breakfast | at noon => in the morning | lunch
What is the name of the longest river in Africa? | Nile | South America => Africa | Amazon
What is the highest mountain in the world? | Everest | Africa => the world | Kilimanjaro
What is a person who bakes bread called? | baker | cuts hair => bakes bread | barber, hairdresser
What is a person who teaches children called? | teacher | flies planes => teaches children | pilot
"""

FOLLOW_UPS = (
    "Please answer in one short sentence.",
    "Say it more simply.",
    "Now say it as if to a child.",
    "Give me only the answer, please.",
    "And how do you know?",
    "Stop there, that is enough.",
)
"""What is said while the answer is on its way."""


@dataclass(frozen=True, slots=True)
class Question:
    """A short question.

    Args:
        text: As it is meant.
        answers: Words, one of which a right answer has.
        earlier, later: Words that stood there first, and those of the text that took their place: another fact.
        stale_answers: What is right with the earlier words.
    """

    text: str
    answers: tuple[str, ...]
    earlier: str
    later: str
    stale_answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A long document, to be composed.

    Args:
        title: Its first line.
        key: The sentence in its middle that is asked about, with a place for `{value}`.
        question: About that sentence.
        values: What may stand there.
    """

    title: str
    key: str
    question: str
    values: tuple[str, ...]


def _questions() -> tuple[Question, ...]:
    rows: list[Question] = []
    for line in _QUESTIONS.strip().splitlines():
        text, answers, change, stale = line.split(" | ")
        earlier, later = change.split(" => ")
        assert later in text, line
        rows.append(Question(text, tuple(answers.split(", ")), earlier, later, tuple(stale.split(", "))))
    return tuple(rows)


QUESTIONS = _questions()

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
DOCUMENTS = (
    Document(
        "Letter to the parents of class four",
        "The trip to the lake is on {value}.",
        "On which day is the trip to the lake?",
        _DAYS,
    ),
    Document(
        "House rules of the guest house at the mill",
        "Breakfast is served from {value} in the morning.",
        "From what time is breakfast served?",
        ("six", "seven", "eight", "nine"),
    ),
    Document(
        "Minutes of the garden club",
        "The new treasurer of the club is {value}.",
        "Who is the new treasurer of the club?",
        ("Laura", "Peter", "Thomas", "Maria"),
    ),
    Document(
        "How to use the little oven",
        "For bread, set the oven to {value} degrees.",
        "To how many degrees is the oven set for bread?",
        ("180", "200", "220", "240"),
    ),
    Document(
        "News from the town library",
        "A library card costs {value} euros a year.",
        "How many euros does a library card cost a year?",
        ("5", "8", "12", "15"),
    ),
    Document(
        "Programme of the summer fair",
        "The concert takes place in the {value}.",
        "Where does the concert take place?",
        ("church", "school", "park", "harbour"),
    ),
    Document(
        "Contract for the boat shed",
        "The rent is due on the {value} of each month.",
        "On which day of the month is the rent due?",
        ("first", "third", "tenth", "fifteenth"),
    ),
    Document(
        "Handbook of the bicycle workshop",
        "The key to the spare parts is kept in the {value} drawer.",
        "In which drawer is the key to the spare parts kept?",
        ("red", "blue", "green", "yellow"),
    ),
    Document(
        "Plan for the move of the office",
        "The movers come from the city of {value}.",
        "From which city do the movers come?",
        ("Berlin", "Vienna", "Madrid", "Rome"),
    ),
    Document(
        "Notes of the weather station",
        "The coldest night of the year had {value} degrees below zero.",
        "How many degrees below zero did the coldest night have?",
        ("7", "9", "14", "18"),
    ),
    Document(
        "Guide to the old railway",
        "The last train goes back at {value} in the evening.",
        "At what time does the last train go back?",
        ("six", "seven", "eight", "ten"),
    ),
    Document(
        "Recipes of the village kitchen",
        "The soup of the house is made with {value}.",
        "What is the soup of the house made with?",
        ("carrots", "beans", "mushrooms", "onions"),
    ),
)

_WHO = (
    "The caretaker",
    "A neighbour",
    "One of the helpers",
    "The secretary",
    "A friend of the house",
    "The cook",
)
_DOES = ("looks after", "writes about", "is glad of", "tells of", "takes care of", "asks about")
_WHAT = (
    "the old door",
    "the wooden bench",
    "the staircase",
    "the long table",
    "the garden gate",
    "the stone wall",
    "the small window",
    "the apple tree",
)
_WHEN = (
    "when it rains",
    "in the evening",
    "after lunch",
    "when there is time",
    "on quiet days",
    "before the holidays",
)
_FILLERS = (
    "{who} usually {does} {what} {when}.",
    "As a rule, {what} can be left as it is {when}.",
    "It is a good idea to look at {what} {when}.",
    "{who} {does} {what}, and nobody minds.",
    "Some people think that {what} could do with new paint.",
    "Whoever wants to help with {what} is welcome {when}.",
    "There is little to say about {what}, except that it is well liked.",
    "{who} would be pleased to hear what you think of {what}.",
    "Perhaps somebody can take a picture of {what} {when}.",
    "Please be careful with {what}, since it is rather old.",
)


def compose(document: Document, value: str, seed: int, words: int = 740) -> str:
    """A document of so many words, about 1,000 tokens, with its key sentence near the middle.

    Args:
        document: What it is about.
        value: What the key sentence says.
        seed: Of the other sentences, which are the same whatever the value.
        words: How many, within a sentence of it.
    """
    rng = random.Random(f"document {document.title} {seed}")
    sentences: list[str] = []
    seen: set[str] = set()
    count = 0
    while count < words:
        sentence = rng.choice(_FILLERS).format(
            who=rng.choice(_WHO), does=rng.choice(_DOES), what=rng.choice(_WHAT), when=rng.choice(_WHEN)
        )
        if sentence not in seen:
            seen.add(sentence)
            sentences.append(sentence)
            count += len(sentence.split())
    middle = len(sentences) * rng.randint(40, 60) // 100
    sentences.insert(middle, document.key.format(value=value))
    paragraphs = [" ".join(sentences[at : at + 6]) for at in range(0, len(sentences), 6)]
    return "\n\n".join([document.title, *paragraphs])
