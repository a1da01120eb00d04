"""Chats about a world, word for word as Foreword's gateway and engine make them of a client's request.

A user message is its documents' blocks, maybe an order hint, an empty line and the question. The blocks stand in any
order, for that is what the gateway changes; a document that an earlier turn holds may be replaced by a location hint.
The order hint has RAGBoost's words, which were the gateway's defaults when the reader was trained. The location hint's are the
defaults of `wasm-module/ordering/src/config.rs`, the blocks those of `body/edit.rs`, the frame around a
message that of `chat_template.jinja`.
"""

import random
from dataclasses import dataclass

from world import Document, Question, Thing, World

SYSTEMS = [
    # Of `cargo xtask demo`, and of `foreword evaluate`.
    "You answer questions of the staff from the handbook. "
    "Use only the documents that you are given, and say so when they do not hold the answer.",
    "Answer the question from the documents. Give the answer alone, in as few words as possible.",
    "You are a helpful assistant.",
    "Answer from the documents.",
    "",
]


@dataclass(frozen=True)
class Stage:
    """How hard chats are."""

    documents: tuple[int, int]
    """In a turn that brings documents."""
    facts: tuple[int, int]
    """Of a document."""
    implicit: float
    """Share of sentences that leave out whom they are about."""
    fillers: float
    """Share of sentences with idle words behind them."""
    kinds: tuple[float, float, float, float]
    """Shares of questions: of one fact, absent, pair, bridge."""
    turns: tuple[int, int]
    """Questions for each lot of documents."""
    again: float
    """Whether a chat goes on with more documents, some of them seen before."""
    alike: float = 0.0
    """Share of lots of documents that tell the same attributes, each of its own thing."""


def block(document: Document) -> str:
    return f'<document id="{document.id}">\n{document.title}\n\n{document.text}\n</document>\n'


def location_hint(document: Document) -> str:
    return f"Please refer to [{document.id}] in the previous conversation.\n"


def order_hint(documents: list[Document]) -> str:
    order = " > ".join(f"[{document.id}]" for document in documents)
    return f"Please read the context in the following priority order: {order} and answer the question.\n"


def user(parts: list[str], question: str, hint: str = "") -> str:
    return "".join(parts) + hint + ("\n" if parts else "") + question


def system(text: str) -> str:
    return f"<|im_start|>system\n{text}<|im_end|>\n" if text else ""


def turn(content: str) -> str:
    """A user's message, up to where the answer begins."""
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


END = "<|im_end|>\n"
"""Behind an answer. The line break is the template's, not the model's."""


def question(world: World, things: list[Thing], shares: tuple[float, float, float, float]) -> Question:
    """A question of a kind drawn by its share; of one fact where the kind does not fit the things."""
    make = world.rng.choices([None, world.absent, world.pair, world.bridge], shares)[0]
    made = make(things) if make else None
    return made or world.single(world.rng.choice(list(world.rng.choice(things).facts.values())))


def chat(world: World, stage: Stage) -> list[tuple[str, str]]:
    """Prompts and answers, in turn; each prompt goes on behind the answer before it."""
    rng = world.rng
    known: list[Document] = []
    prompts = []
    before = system(rng.choice(SYSTEMS))
    while True:
        count = rng.randint(*stage.documents)
        old = rng.sample(known, min(len(known), rng.randint(0, 2), count)) if known else []
        things = world.things(max(count - len(old), 1), stage.facts, 0.35, stage.alike)
        new = [world.document(thing, stage.implicit, stage.fillers) for thing in things]
        documents = old + new
        rng.shuffle(documents)
        # Now and then a client that does not know of Foreword sends the document once more.
        parts = [location_hint(d) if d in old and rng.random() < 0.8 else block(d) for d in documents]
        hint = ""
        if len(documents) > 1 and rng.random() < 0.4:
            hint = order_hint(rng.sample(documents, len(documents)))
        known += new
        subjects = [document.thing for document in documents]
        asked = set()
        for at in range(rng.randint(*stage.turns)):
            asks = question(world, subjects, stage.kinds)
            if asks.text in asked:
                continue
            asked.add(asks.text)
            content = user(parts, asks.text, hint) if at == 0 else user([], asks.text)
            prompts.append((before + turn(content), asks.answer))
            before = END
        if rng.random() >= stage.again:
            return prompts
