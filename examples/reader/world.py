"""Worlds: small handbooks of things that do not exist, and what can be asked of them.

A world is a list of things (a depot, a ferry, a course, a person), each with a name that was never heard before and with
facts: an attribute and a value. A document tells some facts of one thing in prose. A question asks for one fact, for two
facts of two documents, or for one that no document tells.

What is held out, by a hash of its text, never occurs in training: one name in eight and one pair of attribute and value
in eight. So a model that was trained here can answer held-out worlds by reading only. The sentences in `HELD_*` never
occur there either; half of what a world of new sentences tells and asks is in them.
"""

import random
import zlib
from dataclasses import dataclass, field

from words import (
    AMOUNTS, ATTRIBUTES, COLOURS, COMPANIES, FILLERS, GRADES, HEADS, HELD_QUESTIONS, HELD_STATEMENTS, IMPLICIT, KINDS, MIDDLES,
    MONTHS, OPENINGS, QUESTIONS, STATEMENTS, TAILS, WEEKDAYS,
)

ABSENT = "The documents do not say."
"""The answer to what no document tells."""

def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % 8 == 0


@dataclass(frozen=True)
class Fact:
    thing: "Thing"
    attribute: str
    value: str


@dataclass(eq=False)
class Thing:
    kind: str
    name: str
    """As it stands in a sentence: `the Tarsund depot`, `Ivo Kelbra`."""
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name.removeprefix("the ")

    @property
    def id(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Document:
    id: str
    title: str
    text: str
    thing: Thing
    told: tuple[Fact, ...]


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    kind: str
    """`single`, `numeric` (a single fact that is a figure), `pair`, `bridge` (both need two documents) or `absent`."""
    things: tuple[Thing, ...]
    """Whose documents are needed."""


class World:
    """Makes things, documents and questions, their names and values all of the training part or all of the held-out part."""

    def __init__(self, rng: random.Random, held_out: bool, new_sentences: bool = False):
        self.rng = rng
        self.held_out = held_out
        self.new_sentences = new_sentences
        self.names: set[str] = set()

    # Names and values.

    def word(self) -> str:
        """A name, new in this world."""
        while True:
            middle = self.rng.choice(MIDDLES) if self.rng.random() < 0.35 else ""
            name = self.rng.choice(HEADS) + middle + self.rng.choice(TAILS)
            if is_held_out(name) == self.held_out and name not in self.names:
                self.names.add(name)
                return name

    def value(self, attribute: str) -> str:
        kind = ATTRIBUTES[attribute][0]
        for _ in range(1000):
            value = self._value(kind)
            # Names have their own rule; the few words of a closed list are in both parts.
            if kind in ("person", "company", "place", "word", "weekday", "colour", "grade"):
                return value
            if is_held_out(f"{attribute} {value}") == self.held_out:
                return value
        # Of an attribute with few values it may be that none is held out.
        return value

    def _value(self, kind: str) -> str:
        rng = self.rng
        match kind:
            case "time":
                return f"{rng.randrange(6, 22):02}:{rng.randrange(0, 60, 5):02}"
            case "person":
                return f"{self.word()} {self.word()}"
            case "company":
                return f"{self.word()} {rng.choice(COMPANIES)}"
            case "place" | "word":
                return self.word()
            case "extension":
                return str(rng.randrange(1000, 10000))
            case "weekday":
                return rng.choice(WEEKDAYS)
            case "date":
                return f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}"
            case "year":
                return str(rng.randrange(1950, 2026))
            case "code":
                letters = "".join(rng.choice("ABCDEFGHKLMNPRSTVXZ") for _ in range(2))
                return f"{letters}-{rng.randrange(10, 1000)}"
            case "room":
                return f"room {rng.randrange(1, 400)}"
            case "colour":
                return rng.choice(COLOURS)
            case "grade":
                return rng.choice(GRADES)
        low, high = AMOUNTS[kind]
        # Small figures are as frequent as large ones.
        return f"{round(low * (high / low) ** rng.random())} {kind}"

    # Things and documents.

    def thing(self, kind: str, facts: int, name: str | None = None, like: Thing | None = None) -> Thing:
        """A thing with so many facts; or with the attributes of another one of its kind, and values of its own."""
        rng = self.rng
        if name is None:
            match kind:
                case "person":
                    name = f"{self.word()} {self.word()}"
                case "company":
                    name = f"{self.word()} {rng.choice(COMPANIES)}"
                case _:
                    name = f"the {self.word()} {kind}"
        thing = Thing(kind, name)
        for attribute in like.facts if like else rng.sample(KINDS[kind], min(facts, len(KINDS[kind]))):
            thing.facts[attribute] = Fact(thing, attribute, self.value(attribute))
        return thing

    def things(self, count: int, facts: tuple[int, int], linked: float, alike: float = 0.0) -> list[Thing]:
        """`count` things, many of one kind; with probability `linked` a person or company that another one names. With
        probability `alike` all have the attributes of the first, so that only names tell their facts apart."""
        rng = self.rng
        if rng.random() < alike:
            first = self.thing(rng.choice(list(KINDS)), rng.randint(*facts))
            return [first] + [self.thing(first.kind, 0, like=first) for _ in range(count - 1)]
        things: list[Thing] = []
        main = rng.choice(list(KINDS))
        while len(things) < count:
            named = [fact for thing in things for fact in thing.facts.values()
                     if ATTRIBUTES[fact.attribute][0] in ("person", "company")
                     and not any(other.name == fact.value for other in things)]
            if named and rng.random() < linked:
                fact = rng.choice(named)
                things.append(self.thing(ATTRIBUTES[fact.attribute][0], rng.randint(*facts), fact.value))
            else:
                kind = main if rng.random() < 0.5 else rng.choice(list(KINDS))
                things.append(self.thing(kind, rng.randint(*facts)))
        return things

    def document(self, thing: Thing, implicit: float, fillers: float) -> Document:
        rng = self.rng
        told = list(thing.facts.values())
        rng.shuffle(told)
        sentences = []
        for at, fact in enumerate(told):
            sentences.append(self._statement(fact, implicit if at else 0.0))
            if rng.random() < fillers:
                sentences.append(rng.choice(FILLERS))
        return Document(thing.id, thing.title[0].upper() + thing.title[1:], " ".join(sentences), thing, tuple(told))

    def _statement(self, fact: Fact, implicit: float) -> str:
        rng = self.rng
        own = ATTRIBUTES[fact.attribute][1]
        if rng.random() < implicit:
            frame = rng.choice(IMPLICIT)
        elif rng.random() < 0.35:
            frame = own
        else:
            frame = rng.choice(HELD_STATEMENTS if self.new_sentences and rng.random() < 0.5 else STATEMENTS)
        opening = rng.choice(OPENINGS) if rng.random() < 0.12 else ""
        starts_with_name = frame.startswith(("{V}", "{E}"))
        text = self._fill(frame, fact.attribute, fact.thing, fact.value)
        if opening and not starts_with_name:
            text = text[0].lower() + text[1:]
        return opening + (text if opening else text[0].upper() + text[1:]) + "."

    @staticmethod
    def _fill(frame: str, attribute: str, thing: Thing, value: str = "") -> str:
        article = "an" if attribute[0] in "aeiou" else "a"
        return frame.format(a=attribute, an=article, E=thing.name, V=value)

    # Questions.

    def ask(self, attribute: str, thing: Thing) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            frame = ATTRIBUTES[attribute][2]
        else:
            frame = rng.choice(HELD_QUESTIONS if self.new_sentences and rng.random() < 0.5 else QUESTIONS)
        text = self._fill(frame, attribute, thing)
        return text[0].upper() + text[1:]

    def single(self, fact: Fact) -> Question:
        figure = ATTRIBUTES[fact.attribute][0] in AMOUNTS or ATTRIBUTES[fact.attribute][0] in ("extension", "year")
        return Question(self.ask(fact.attribute, fact.thing), fact.value, "numeric" if figure else "single", (fact.thing,))

    def absent(self, things: list[Thing]) -> Question | None:
        """Asks for a fact of a thing that no document tells, or of a thing that has no document."""
        rng = self.rng
        if rng.random() < 0.3:
            like = rng.choice(things)
            stranger = self.thing(like.kind, 0)
            return Question(self.ask(rng.choice(list(like.facts)), stranger), ABSENT, "absent", ())
        thing = rng.choice(things)
        others = [a for a in KINDS[thing.kind] if a not in thing.facts]
        # Preferably one that another document tells of another thing: that is the mistake to make.
        tempting = [a for a in others if any(a in other.facts for other in things)]
        choices = tempting if tempting and rng.random() < 0.6 else others
        return Question(self.ask(rng.choice(choices), thing), ABSENT, "absent", ()) if choices else None

    def pair(self, things: list[Thing]) -> Question | None:
        """Asks for two facts of two things, with both values in the answer."""
        rng = self.rng
        if len(things) < 2:
            return None
        one, two = rng.sample(things, 2)
        shared = [a for a in one.facts if a in two.facts]
        if shared and rng.random() < 0.6:
            a = b = rng.choice(shared)
            frame = rng.choice(["What is the {a} of {E}, and of {F}?", "What is the {a} of {E} and of {F}?"])
        else:
            a, b = rng.choice(list(one.facts)), rng.choice(list(two.facts))
            frame = "What is the {a} of {E}, and the {b} of {F}?"
        text = frame.format(a=a, b=b, E=one.name, F=two.name)
        return Question(text, f"{one.facts[a].value} and {two.facts[b].value}", "pair", (one, two))

    def bridge(self, things: list[Thing]) -> Question | None:
        """Asks for a person or company that one document names, and for a fact that its own document tells."""
        rng = self.rng
        by_name = {thing.name: thing for thing in things}
        links = [(fact, by_name[fact.value]) for thing in things for fact in thing.facts.values() if fact.value in by_name]
        if not links:
            return None
        fact, other = rng.choice(links)
        attribute = rng.choice(list(other.facts))
        frame = rng.choice(["What is the {a} of {E}, and the {b} there?", "Name the {a} of {E} and their {b}.",
                            "Who is the {a} of {E}, and what is their {b}?"])
        text = frame.format(a=fact.attribute, b=attribute, E=fact.thing.name)
        return Question(text, f"{fact.value}, {other.facts[attribute].value}", "bridge", (fact.thing, other))
