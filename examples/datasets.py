#!/usr/bin/env python3
"""Writes published data sets as lines of JSON, which `foreword evaluate --data lines.jsonl` asks.

    python3 examples/datasets.py FORMAT FILE [CORPUS] [--documents K] [--chunk-words N] > lines.jsonl

| FORMAT | FILE | documents of a question | right answers |
| --- | --- | --- | --- |
| hotpotqa | hotpot_dev_distractor_v1.json, hotpot_dev_fullwiki_v1.json | its `context`, as listed | `answer` |
| multihop-rag | MultiHopRAG.json | BM25 over CORPUS, corpus.json | `answer` |
| qasper | qasper-dev-v0.3.json | BM25 over the paragraphs of its paper | every annotator's; `unanswerable` |
| narrativeqa | qaps.csv | BM25 over its story: CORPUS is summaries.csv, or a folder of ID.content | both |
| mt-rag | conversations.json, or the tasks' reference.jsonl | the contexts of its turn; a conversation is a chat | the agent's turn |
| nq | lines with `document_text` or `document_tokens`; DPR's nq-dev.json | BM25 over its page; DPR's contexts | short answers, yes, no |
| mmlu | a subject's .csv | BM25 over CORPUS | a letter |
| pubmedqa | ori_pqal.json | its abstract's parts, then BM25 over all others | yes, no, maybe, by letter |
| xquad-chats | xquad.en.json; SQuAD's files | BM25 over all paragraphs; a chat is two questions on one paragraph | every annotator's |

CORPUS is an array of objects (.json), such objects on lines (.jsonl), or columns `id`, `text`, `title` (.tsv). Longer texts are cut
into passages of N words (800). A question gets K documents (10; all of those that hotpotqa and mt-rag list). Questions without an
answer or a document are left out and counted on standard error. Bring the files; none comes with Foreword.
"""

import argparse
import csv
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path


class Bad(Exception):
    """A file is not of its format."""


def document(id, text, title=""):
    return {"id": id, **({"title": title} if title else {}), "text": text}


def cut(id, title, text, words):
    """Returns a text as passages of at most `words` words; an empty one gives none."""
    split = text.split()
    if len(split) <= words:
        return [document(id, text.strip(), title)] if split else []
    parts = [split[at : at + words] for at in range(0, len(split), words)]
    return [document(f"{id} ({number})", " ".join(part), title) for number, part in enumerate(parts, 1)]


class Passages:
    """Documents that a question's best ones are found in, by Okapi BM25 (k1 = 1.2, b = .75), as the host finds them."""

    def __init__(self, documents):
        self.documents, self.postings, self.lengths = documents, defaultdict(dict), []
        for at, found in enumerate(documents):
            counts = Counter(self.words(found["text"]))
            self.lengths.append(sum(counts.values()))
            for word, times in counts.items():
                self.postings[word][at] = times
        self.mean = max(sum(self.lengths) / max(len(documents), 1), 1)

    @staticmethod
    def words(text):
        return re.findall(r"[^\W_]+", text.lower())

    def best(self, question, k):
        """Returns the `k` best documents, best first, the earlier first among equals; fewer if fewer share a word."""
        scores = Counter()
        for word, weight in sorted(Counter(self.words(question)).items()):
            postings = self.postings.get(word, {})
            rarity = math.log(1 + (len(self.documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            for at, times in postings.items():
                damped = times + 1.2 * (0.25 + 0.75 * self.lengths[at] / self.mean)
                scores[at] += weight * rarity * times * 2.2 / damped
        ranked = sorted(scores, key=lambda at: (-scores[at], at))
        return [self.documents[at] for at in ranked[:k]]


def lines(path):
    """Yields a file's lines of JSON with their numbers."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise Bad(f"{path}, line {number}: {error}") from None


def whole(path):
    with open(path, encoding="utf-8-sig") as file:
        return json.load(file)


def is_array(path):
    with open(path, encoding="utf-8-sig") as file:
        return file.read(4096).lstrip().startswith("[")


def table(path, columns=None, **dialect):
    """Yields a table's rows: those values whose `columns` the header names, or all values where there is no header."""
    csv.field_size_limit(sys.maxsize)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = (row for row in csv.reader(file, strict=True, **dialect) if row)
        if columns is None:
            yield from rows
            return
        header = [name.strip() for name in next(rows, [])]
        for name in columns:
            if name not in header:
                raise Bad(f"{path}: the table has no column {name!r}, only {', '.join(header)}")
        places = [header.index(name) for name in columns]
        for row in rows:
            yield [row[place] if place < len(row) else "" for place in places]


def corpus(options):
    """Returns the passages of CORPUS."""
    path = options.corpus
    if path is None:
        raise Bad(f"{options.format} has questions without documents: CORPUS must name them")
    if path.suffix == ".json":
        entries = enumerate(whole(path), 1)
    elif path.suffix in (".jsonl", ".ndjson"):
        entries = lines(path)
    elif path.suffix == ".tsv":
        rows = table(path, ["id", "text", "title"], delimiter="\t", quoting=csv.QUOTE_NONE)
        entries = enumerate((dict(zip(("id", "text", "title"), row)) for row in rows), 1)
    else:
        raise Bad(f"{path}: a corpus must end in .json, .jsonl or .tsv")
    documents = []
    for number, entry in entries:
        text = first(entry, "text", "body", "contents")
        if text is None:
            raise Bad(f"{path}, entry {number}: it has no text")
        id = first(entry, "id", "_id", "url", "document_id")
        documents += cut(str(number) if id is None else str(id), entry.get("title") or "", text, options.chunk_words)
    if not documents:
        raise Bad(f"the corpus {path} is empty")
    return Passages(documents)


def first(entry, *names):
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def distinct(answers):
    return list(dict.fromkeys(answer for answer in answers if answer))


def question(id, asked, documents, answers, **more):
    return {"id": id, "question": asked, "documents": documents, "answers": answers, **more}


def hotpotqa(options):
    """Yang et al., 2018: an array of questions, each with the paragraphs that it comes with. The test set has no answers."""
    for entry in whole(options.file):
        listed = entry["context"][: options.documents]
        documents = [document(title, "".join(sentences).strip()) for title, sentences in listed]
        answers = distinct([entry.get("answer")])
        yield question(first(entry, "_id", "id"), entry["question"], [d for d in documents if d["text"]], answers)


def multihop_rag(options):
    """Tang and Yang, 2024: an array of questions about news articles, which stand in a file beside it."""
    passages = corpus(options)
    for number, entry in enumerate(whole(options.file), 1):
        found = passages.best(entry["query"], options.k)
        yield question(f"question {number}", entry["query"], found, distinct([entry["answer"]]))


def qasper(options):
    """Dasigi et al., 2021: papers, each with paragraphs and questions. An answer is spans of the paper, words of its own, yes
    or no, or that the paper does not say; the last is scored against `unanswerable`, as the authors' script does."""

    def words(answer):
        if answer.get("unanswerable"):
            return "unanswerable"
        said = {True: "yes", False: "no", None: ""}[answer.get("yes_no")]
        return ", ".join(answer.get("extractive_spans") or []) or answer.get("free_form_answer") or said

    for id, paper in whole(options.file).items():
        documents = cut(f"{id} abstract", paper.get("title") or "", paper.get("abstract") or "", options.chunk_words)
        paragraphs = [(section, text) for section in paper["full_text"] for text in section["paragraphs"]]
        for number, (section, text) in enumerate(paragraphs, 1):
            documents += cut(f"{id} {number}", section["section_name"] or "", text, options.chunk_words)
        passages = Passages(documents)
        for entry in paper["qas"]:
            answers = distinct(words(given["answer"]) for given in entry.get("answers", []))
            yield question(entry["question_id"], entry["question"], passages.best(entry["question"], options.k), answers)


def narrativeqa(options):
    """Kocisky et al., 2018: a table of questions about stories, which are summaries in a table or full texts in a folder."""
    if options.corpus is None:
        raise Bad("narrativeqa has questions without stories: CORPUS must be summaries.csv, or a folder of ID.content")
    summaries, stories = None, {}
    if not options.corpus.is_dir():
        summaries = {id.strip(): text for id, text in table(options.corpus, ["document_id", "summary"])}

    def story(id):
        if summaries is not None:
            return summaries.get(id)
        # An id is a hash in hexadecimal digits, and no path.
        path = options.corpus / f"{id}.content"
        return path.read_text("utf-8", "replace") if re.fullmatch("[0-9A-Za-z]+", id) and path.exists() else None

    rows = table(options.file, ["document_id", "question", "answer1", "answer2"])
    for number, row in enumerate(rows, 1):
        id, asked, *answers = (value.strip() for value in row)
        if id not in stories:
            text = story(id)
            if text is None:
                raise Bad(f"{options.file}, row {number + 1}: there is no story {id!r}")
            stories[id] = Passages(cut(id, "", text, options.chunk_words))
        yield question(f"question {number}", asked, stories[id].best(asked, options.k), [a for a in answers if a])


def mt_rag(options):
    """Katsis et al., 2025: chats of several turns, each with its contexts. They are published as conversations, in one array,
    and as tasks, one on each line, which repeat the chat up to their turn."""

    def turn(asked, contexts, answers):
        found = [document(c["document_id"], c["text"], c.get("title") or "") for c in contexts[: options.documents]]
        return {"question": asked, "documents": [d for d in found if d["text"].strip()], "answers": answers}

    if is_array(options.file):
        for number, chat in enumerate(whole(options.file), 1):
            turns = []
            for message in chat["messages"]:
                if message["speaker"] == "user":
                    turns.append(turn(message["text"], [], []))
                elif turns:
                    turns[-1] = turn(turns[-1]["question"], message.get("contexts") or [], [message["text"]])
            yield {"id": first(chat, "id", "conversation_id", "_id") or f"conversation {number}", "turns": turns}
        return
    chats = defaultdict(list)
    for number, task in lines(options.file):
        try:
            place = int(task["turn"])
        except ValueError:
            raise Bad(f"{options.file}, line {number}: `turn` is no number") from None
        asked = [message["text"] for message in task["input"] if message["speaker"] == "user"]
        if not asked:
            raise Bad(f"{options.file}, line {number}: {task['task_id']!r} has no user's turn")
        answers = [message["text"] for message in task["targets"]]
        chats[task["conversation_id"]].append((place, turn(asked[-1], task.get("contexts") or [], answers)))
    for id, turns in chats.items():
        yield {"id": id, "turns": [turn for _, turn in sorted(turns, key=lambda pair: pair[0])]}


def nq(options):
    """Kwiatkowski et al., 2019, in three forms: simplified lines with `document_text`, the original ones with
    `document_tokens`, and DPR's array of questions with contexts. A page's documents are its top-level candidates for a long
    answer, without markup."""
    if is_array(options.file):
        for number, entry in enumerate(whole(options.file), 1):
            # One right passage, then those that look right: a retriever's list has both. `ctxs` is FiD's list.
            listed = [*entry.get("ctxs", []), *entry.get("positive_ctxs", [])[:1]]
            listed += [*entry.get("hard_negative_ctxs", []), *entry.get("negative_ctxs", [])]
            found = []
            for place, passage in enumerate(listed[: options.k], 1):
                id = first(passage, "id", "passage_id", "psg_id")
                id = f"{number}-{place}" if id is None else str(id)
                found.append(document(id, passage["text"], passage.get("title") or ""))
            yield question(f"question {number}", entry["question"], found, entry["answers"])
        return
    for number, page in lines(options.file):
        if "document_text" in page:
            tokens = page["document_text"].split(" ")
        elif "document_tokens" in page:
            tokens = [token["token"] for token in page["document_tokens"]]
        else:
            raise Bad(f"{options.file}, line {number}: it has neither `document_text` nor `document_tokens`")

        def words(span):
            start, end = span["start_token"], span["end_token"]
            inside = tokens[start:end] if 0 <= start <= end <= len(tokens) else []
            return " ".join(token for token in inside if not (token.startswith("<") and token.endswith(">")))

        answers = []
        for annotation in page["annotations"]:
            answers += map(words, annotation.get("short_answers", []))
            answers.append({"YES": "yes", "NO": "no"}.get(annotation.get("yes_no_answer")))
        id, documents = str(page["example_id"]), []
        candidates = [c for c in page["long_answer_candidates"] if c.get("top_level", True)]
        for place, candidate in enumerate(candidates, 1):
            documents += cut(f"{id}-{place}", page.get("document_title") or "", words(candidate), options.chunk_words)
        asked = page["question_text"]
        yield question(id, asked, Passages(documents).best(asked, options.k), distinct(answers))


def mmlu(options):
    """Hendrycks et al., 2021: a table without a header, a question, four choices and the letter of the right one a row."""
    passages = corpus(options)
    for number, row in enumerate(table(options.file), 1):
        if len(row) != 6:
            raise Bad(
                f"{options.file}, row {number} has {len(row)} columns, it must have 6: the question, four choices and a letter"
            )
        asked, *choices, letter = row
        if letter.strip() not in ("A", "B", "C", "D"):
            raise Bad(f"{options.file}, row {number}: {letter!r} is not one of A, B, C, D")
        found = passages.best(asked, options.k)
        yield question(f"question {number}", asked, found, [letter.strip()], choices=choices)


def pubmedqa(options):
    """Jin et al., 2019: questions by the number of their abstract. The parts of all abstracts are the documents; a question's
    own ones are always among those that it gets."""
    choices, entries, documents = ["yes", "no", "maybe"], [], []
    for id, entry in whole(options.file).items():
        labels, own = entry.get("LABELS", []), []
        for number, text in enumerate(entry["CONTEXTS"], 1):
            label = labels[number - 1] if number <= len(labels) else ""
            own += cut(f"{id}-{number}", label, text, options.chunk_words)
        documents += own
        entries.append((id, entry, own))
    passages = Passages(documents)
    for id, entry, own in entries:
        decision, asked = entry.get("final_decision"), entry["QUESTION"]
        if decision is not None and decision not in choices:
            raise Bad(f"{options.file}, abstract {id}: {decision!r} is not one of yes, no, maybe")
        others = (found for found in passages.best(asked, options.k) if found not in own)
        letters = [] if decision is None else ["ABC"[choices.index(decision)]]
        yield question(id, asked, [*own, *others][: options.k], letters, choices=choices)


def xquad_chats(options):
    """Artetxe et al., 2020, made into chats here: two questions about one paragraph, drawn at random but alike each time.
    Every question is asked once, where a paragraph has an even number of them."""
    documents, asked = [], []
    for article in whole(options.file)["data"]:
        for paragraph in article["paragraphs"]:
            documents.append(document(f"p{len(documents)}", paragraph["context"], article.get("title", "")))
            asked.append([(qa["question"], distinct(a["text"] for a in qa["answers"])) for qa in paragraph["qas"]])
    passages, draw = Passages(documents), random.Random(7)
    for questions in asked:
        draw.shuffle(questions)
    order = draw.sample(range(len(asked)), len(asked))
    # A chat on each paragraph, then a second one on each that has four questions, and so on.
    for first in range(0, max(map(len, asked), default=0) - 1, 2):
        for at in order:
            drawn = asked[at][first : first + 2]
            if len(drawn) == 2:
                turns = [{"question": q, "documents": passages.best(q, options.k), "answers": answers} for q, answers in drawn]
                yield {"id": f"p{at}-{first // 2}", "turns": turns}


FORMATS = {
    format.__name__.replace("_", "-"): format
    for format in (hotpotqa, multihop_rag, qasper, narrativeqa, mt_rag, nq, mmlu, pubmedqa, xquad_chats)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("corpus", type=Path, nargs="?", metavar="CORPUS")
    parser.add_argument("--documents", type=int, metavar="K")
    parser.add_argument("--chunk-words", type=int, default=800, metavar="N")
    options = parser.parse_args()
    if (options.documents or 1) < 1 or options.chunk_words < 1:
        parser.error("K and N are at least 1")
    options.k = options.documents or 10
    left_out = 0
    try:
        for case in FORMATS[options.format](options):
            turns = case.get("turns", [case])
            if any(turn["answers"] for turn in turns) and any(turn["documents"] for turn in turns):
                print(json.dumps(case, ensure_ascii=False))
            else:
                left_out += 1
    except Bad as error:
        sys.exit(str(error))
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"{options.file}: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        sys.exit(f"{options.file} is not of the format {options.format}: {error!r}")
    if left_out:
        print(f"{left_out} questions without an answer or a document left out", file=sys.stderr)


if __name__ == "__main__":
    main()
