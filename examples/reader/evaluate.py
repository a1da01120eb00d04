"""Asks the reader about held-out worlds and prints two tables: `python evaluate.py FOLDER`.

In the worlds of the first, names and values are held out; in those of the second, half of the sentences that tell and ask
too.

Greedy decoding, one question a prompt, as the demo asks: five documents in random order, then the question. Chats have
two turns; the second brings documents of which two were in the first and are replaced by location hints. An answer is
right when it is the expected one, to the letter.
"""

import argparse
import json
import random
from pathlib import Path

import torch

import chat
import stages
import tokenizer as tokens_of
from model import Reader, Shape
from world import Document, Question, World

KINDS = ["single", "numeric", "absent", "pair", "bridge"]
DOCUMENTS = 5


class Case:
    """A held-out world with one question of the wanted kind."""

    def __init__(self, seed: str, kind: str, new_sentences: bool = False):
        rng = random.Random(seed)
        stage = stages.LAST
        while True:
            self.world = world = World(rng, True, new_sentences)
            self.things = world.things(DOCUMENTS, stage.facts, 0.35)
            made = self.question(kind)
            if made:
                break
        self.asked: Question = made
        self.documents = [world.document(thing, stage.implicit, stage.fillers) for thing in self.things]
        rng.shuffle(self.documents)

    def question(self, kind: str) -> Question | None:
        world = self.world
        if kind in ("single", "numeric"):
            facts = [fact for thing in self.things for fact in thing.facts.values()]
            world.rng.shuffle(facts)
            return next((made for made in map(world.single, facts) if made.kind == kind), None)
        return {"absent": world.absent, "pair": world.pair, "bridge": world.bridge}[kind](self.things)


def alone(case: Case, hint: bool = False) -> str:
    words = chat.order_hint(case.world.rng.sample(case.documents, DOCUMENTS)) if hint else ""
    parts = [chat.block(document) for document in case.documents]
    return chat.system(chat.SYSTEMS[0]) + chat.turn(chat.user(parts, case.asked.text, words))


def second_turn(case: Case, deduplicated: bool) -> str:
    """The case's question behind a turn about two of its documents and one more."""
    world, rng = case.world, case.world.rng
    needed = [d for d in case.documents if d.thing in case.asked.things]
    others = [d for d in case.documents if d not in needed]
    seen = (needed[:1] + others)[:2]
    stranger = world.document(world.thing(seen[0].thing.kind, 3), 0.2, 0.1)
    first: list[Document] = rng.sample([*seen, stranger], 3)
    opening = world.single(rng.choice(stranger.told))
    before = chat.system(chat.SYSTEMS[0]) + chat.turn(chat.user([chat.block(d) for d in first], opening.text))
    parts = [chat.location_hint(d) if deduplicated and d in seen else chat.block(d) for d in case.documents]
    return before + opening.answer + chat.END + chat.turn(chat.user(parts, case.asked.text))


@torch.no_grad()
def are_right(model: Reader, tokenizer, prompts: list[str], expected: list[str]) -> list[bool]:
    """Whether the greedy answers are the expected ones.

    They are exactly when every token of an expected answer, its end included, is the likeliest behind those before it: one
    pass over prompt and answer tells.
    """
    device = model.embed_tokens.weight.device
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    answers = [tokenizer.encode(answer).ids + [tokens_of.EOS] for answer in expected]
    right = [False] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda at: len(encoded[at]) + len(answers[at]))
    for start in range(0, len(order), 16):
        batch = order[start : start + 16]
        rows = [torch.tensor(encoded[at] + answers[at]) for at in batch]
        # What stands behind a row's end cannot be seen from it.
        hidden = model.hidden(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device))
        for row, at in enumerate(batch):
            first = len(encoded[at]) - 1
            likeliest = model.logits(hidden[row, first : first + len(answers[at])]).argmax(-1)
            right[at] = likeliest.tolist() == answers[at]
    return right


def load(folder: Path, device: str) -> tuple[Reader, object]:
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    shape = Shape(config["vocab_size"], config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
                  config["head_dim"], config["intermediate_size"], config["max_position_embeddings"], config["rope_theta"])
    model = Reader(shape)
    model.load_state_dict({name.removeprefix("model."): w.float() for name, w in load_file(folder / "model.safetensors").items()})
    return model.to(device, torch.bfloat16).eval(), tokens_of.load(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="only the plain prompts")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.folder, args.device)
    ways = {"one turn": alone, "order hint": lambda case: alone(case, True), "second turn": lambda case: second_turn(case, False),
            "de-duplicated": lambda case: second_turn(case, True)}
    if args.quick:
        ways = {"one turn": alone}
    for new_sentences in (False, True):
        held_out = "names, values and sentences held out" if new_sentences else "names and values held out"
        print(f"{held_out:38}" + "".join(f"{way:>16}" for way in ways))
        for kind in KINDS:
            line = f"  {kind:36}"
            for prompt in ways.values():
                cases = [Case(f"{args.seed} {kind} {at}", kind, new_sentences) for at in range(args.questions)]
                prompts = [prompt(case) for case in cases]
                right = are_right(model, tokenizer, prompts, [case.asked.answer for case in cases])
                line += f"{100 * sum(right) / len(right):15.1f}%"
            print(line, flush=True)


if __name__ == "__main__":
    main()
