"""Writes held-out worlds as files: for the demo, and for `foreword evaluate`.

`python corpus.py world` writes the demo's corpus into the folder `world`, in the form of `examples/handbook`; `cargo xtask
corpus` ranks its documents for each question. `python corpus.py questions.jsonl` writes questions of several worlds with
five documents each, and `python corpus.py chats.jsonl --turns 3` the same in chats, whose turns share documents.
"""

import argparse
import json
import random
from pathlib import Path

import stages
from world import ABSENT, Document, Question, Thing, World

KINDS_OF_THINGS = "office depot library workshop ferry tug pump printer course permit club company".split()
OF_A_KIND = 8
SHARES = {"single": 0.4, "numeric": 0.28, "absent": 0.1, "pair": 0.16, "bridge": 0.06}


class Corpus:
    """A held-out world of some hundred documents."""

    def __init__(self, seed: str):
        self.rng = rng = random.Random(seed)
        self.world = world = World(rng, held_out=True)
        things = [world.thing(kind, rng.randint(3, 5)) for kind in KINDS_OF_THINGS for _ in range(OF_A_KIND)]
        managers = [thing.facts["manager"].value for thing in things if "manager" in thing.facts]
        things += [world.thing("person", 4, name) for name in managers[::2]]
        rng.shuffle(things)
        self.things: list[Thing] = things
        stage = stages.LAST
        self.documents: dict[Thing, Document] = {t: world.document(t, stage.implicit, stage.fillers) for t in things}

    def question(self, kind: str) -> Question:
        while True:
            things = self.things if kind == "bridge" else self.rng.sample(self.things, 5)
            if kind in ("single", "numeric"):
                made = self.world.single(self.rng.choice(list(things[0].facts.values())))
            else:
                made = getattr(self.world, kind)(things)
            if made and made.kind == kind:
                return made

    def questions(self, count: int) -> list[Question]:
        """In shares as above, no two of the same words, in random order."""
        made: dict[str, Question] = {}
        for kind, share in SHARES.items():
            wanted = len(made) + round(share * count)
            while len(made) < wanted:
                question = self.question(kind)
                made.setdefault(question.text, question)
        questions = list(made.values())[:count]
        self.rng.shuffle(questions)
        return questions

    def found(self, question: Question, count: int) -> list[Document]:
        """What a retriever may find: the documents that are needed, at any rank, and others, mostly of the same kinds."""
        rng = self.rng
        found = list(question.things)
        kinds = {thing.kind for thing in found} or {rng.choice(KINDS_OF_THINGS)}
        near = [thing for thing in self.things if thing.kind in kinds]
        while len(found) < count:
            # The first of a kind are found more often, as popular documents are.
            thing = near[int(len(near) * rng.random() ** 2)] if rng.random() < 0.8 else rng.choice(self.things)
            if thing not in found:
                found.append(thing)
        rng.shuffle(found)
        return [self.documents[thing] for thing in found]


def plain(document: Document) -> dict:
    return {"id": document.id, "title": document.title, "text": document.text}


def demo(seed: int, folder: Path, count: int) -> None:
    corpus = Corpus(f"demo {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "documents.jsonl", [plain(document) for document in corpus.documents.values()])
    write(folder / "questions.jsonl", [
        {"id": f"q{at:03}", "question": asked.text, "answer": None if asked.answer == ABSENT else asked.answer,
         "documents": [thing.id for thing in asked.things], "kind": asked.kind}
        for at, asked in enumerate(corpus.questions(count), 1)])


def evaluation(seed: int, file: Path, count: int, turns: int) -> None:
    """Every 250 questions have a world of their own; a chat stays in one."""
    lines = []
    for number in range(0, count, 250):
        corpus = Corpus(f"evaluation {seed} {number}")
        asked = corpus.questions(min(250, count - number))
        for at in range(0, len(asked), turns):
            chat, known = [], []
            for question in asked[at : at + turns]:
                found = corpus.found(question, 5)
                # A chat stays with its subject: two documents of the turn before are found again.
                again = [d for d in known if d not in found][:2]
                spare = [d for d in found if d.thing not in question.things]
                found = [d for d in found if d not in spare[: len(again)]] + again
                corpus.rng.shuffle(found)
                known = found
                chat.append({"question": question.text, "answers": [question.answer], "documents": [plain(d) for d in found]})
            name = {"id": f"{number + at:04} {question.kind}"}
            lines.append(name | (chat[0] if turns == 1 else {"turns": chat}))
    write(file, lines)


def write(file: Path, lines: list[dict]) -> None:
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder, or a file that ends in .jsonl")
    parser.add_argument("--questions", type=int, help="250 of the demo's world, 2000 of a file")
    parser.add_argument("--turns", type=int, default=1, help="of a chat")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.out.suffix == ".jsonl":
        evaluation(args.seed, args.out, args.questions or 2000, args.turns)
    else:
        demo(args.seed, args.out, args.questions or 250)


if __name__ == "__main__":
    main()
