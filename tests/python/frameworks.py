"""Asks through a gateway what RAG frameworks ask, streaming and not, and checks what they make of the answers.

    frameworks.py SMOLLM2 TOOLS COHERE HANDBOOK CLIENT…

SMOLLM2 is the address of a gateway in front of SmolLM2-135M-Instruct, TOOLS of one in front of a model with random weights whose
template knows tools, COHERE of one in front of a recorded Cohere. HANDBOOK is the folder of the handbook's corpus, and each CLIENT the name of a function below. The last line that is printed says how many checks passed.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

SMOLLM2, TOOLS, COHERE, HANDBOOK, *CLIENTS = sys.argv[1:]
KEY = "sk-test"
MODEL = "m"
CHECKS = 0


def check(found, expected):
    global CHECKS
    assert found == expected, f"{found!r}, not {expected!r}"
    CHECKS += 1


def read(name):
    return [json.loads(line) for line in (Path(HANDBOOK) / name).read_text().splitlines()]


DOCUMENTS = {document["id"]: document for document in read("documents.jsonl")}
QUESTIONS = [
    {**asked, "documents": ranked["documents"]}
    for asked, ranked in zip(read("questions.jsonl"), read("retrieved.jsonl"), strict=True)
    if asked["answer"] and set(asked["documents"]) <= set(ranked["documents"][:4])
]
SYSTEM = "Answer from the documents."


def found(asked, count=4):
    """What retrieval finds for a question, best first."""
    return [DOCUMENTS[name] for name in asked["documents"][:count]]


def block(document):
    return f'<document id="{document["id"]}">\n{document["title"]}\n\n{document["text"]}\n</document>'


def prompt(asked, documents=None):
    return "\n".join(map(block, documents or found(asked))) + f"\n\n{asked['question']}"


def answer_to(asked, system=None):
    """What the gateway answers to the prompt, read without any framework."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt(asked)})
    body = json.dumps({"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{SMOLLM2}/v1/chat/completions", body, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        text = json.load(response)["choices"][0]["message"]["content"]
    assert text.strip(), "the model answered nothing"
    return text


class Weather(BaseModel):
    """Tells the weather."""

    # A model with random weights would add arguments of its own without an end.
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Lima"]


class Verdict(BaseModel):
    is_found: bool


def sdk_openai():
    import openai

    client = openai.OpenAI(base_url=f"{SMOLLM2}/v1", api_key=KEY, max_retries=0)
    asked = QUESTIONS[0]
    messages = [{"role": "user", "content": prompt(asked)}]
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    answer = raw.parse().choices[0].message.content
    check(answer, answer_to(asked))
    # The same documents, ranked in another way: the prompt begins as before.
    messages = [{"role": "user", "content": prompt(asked, found(asked)[::-1])}]
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    check(raw.headers["x-foreword"].startswith("ordered; policy=foresight; documents=4; matched=4"), True)
    usage = raw.parse().usage
    check(usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens / 2, True)
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=24, stream=True, stream_options=options
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check((text, chunks[-1].usage.prompt_tokens), (raw.parse().choices[0].message.content, usage.prompt_tokens))
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Verdict, max_tokens=64, temperature=0)
    check(type(parsed.choices[0].message.parsed), Verdict)
    response = client.responses.create(model=MODEL, input=prompt(asked), temperature=0, max_output_tokens=24)
    check(response.output_text != "", True)
    # The model may be cut off, and the client's last event is then not the one that `get_final_response` waits for.
    with client.responses.stream(model=MODEL, input=prompt(asked), temperature=0, max_output_tokens=24) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    check(text, response.output_text)
    client = openai.OpenAI(base_url=f"{TOOLS}/v1", api_key=KEY, max_retries=0)
    tool = openai.pydantic_function_tool(Weather, name="weather")
    called = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Weather?"}], tools=[tool], tool_choice="required", max_tokens=96,
        temperature=0,
    )
    check(type(called.choices[0].message.tool_calls[0].function.parsed_arguments), Weather)


def sdk_anthropic():
    import anthropic

    client = anthropic.Anthropic(base_url=SMOLLM2, api_key=KEY, max_retries=0)
    asked = QUESTIONS[1]
    messages = [{"role": "user", "content": prompt(asked)}]
    message = client.messages.create(model=MODEL, max_tokens=24, messages=messages, extra_body={"temperature": 0})
    check(message.content[0].text, answer_to(asked))
    with client.messages.stream(model=MODEL, max_tokens=24, messages=messages, extra_body={"temperature": 0}) as stream:
        check("".join(stream.text_stream), answer_to(asked))


def litellm():
    import litellm

    asked = QUESTIONS[2]
    options = {
        "model": f"openai/{MODEL}",
        "api_base": f"{SMOLLM2}/v1",
        "api_key": KEY,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt(asked)}],
        "temperature": 0,
        "max_tokens": 24,
    }
    answer = litellm.completion(**options)
    check(answer.choices[0].message.content, answer_to(asked, SYSTEM))
    pieces = litellm.completion(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(pieces)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check(text, answer_to(asked, SYSTEM))
    whole = litellm.stream_chunk_builder(chunks)
    check(whole.usage.prompt_tokens, answer.usage.prompt_tokens)
    check(answer.usage.prompt_tokens_details.cached_tokens >= 0, True)


def langchain():
    from langchain_classic.chains import RetrievalQA
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_openai import ChatOpenAI

    class Retriever(BaseRetriever):
        """Finds the documents of the handbook, in their order or backwards."""

        reverse: bool = False

        def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun):
            asked = next(asked for asked in QUESTIONS if asked["question"] == query)
            documents = found(asked)[::-1] if self.reverse else found(asked)
            return [Document(f"{each['title']}\n\n{each['text']}", metadata={"id": each["id"]}) for each in documents]

    model = ChatOpenAI(base_url=f"{SMOLLM2}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=24, include_response_headers=True)
    asked = QUESTIONS[3]
    answer = model.invoke(prompt(asked))
    check(answer.content, answer_to(asked))
    check("x-foreword" in answer.response_metadata["headers"], True)
    pieces = list(model.stream(prompt(asked)))
    check("".join(piece.content for piece in pieces), answer_to(asked))
    check(type(model.with_structured_output(Verdict).invoke(prompt(asked))), Verdict)

    # Documents with tags, as the gateway reads them, and LangChain's own template, which the gateway passes on.
    tagged = PromptTemplate.from_template('<document id="{id}">\n{page_content}\n</document>')
    template = ChatPromptTemplate.from_messages([("user", "{context}\n\n{question}")])
    options = {"document_prompt": tagged, "document_separator": "\n", "prompt": template}
    cached = []
    for reverse in (False, True):
        retriever = Retriever(reverse=reverse)
        chain = RetrievalQA.from_chain_type(
            model, retriever=retriever, chain_type_kwargs=options, return_source_documents=True
        )
        result = chain.invoke({"query": QUESTIONS[4]["question"]})
        check(len(result["source_documents"]), 4)
        cached.append(result["result"])
    check(cached[0], answer_to(QUESTIONS[4]))
    plain = RetrievalQA.from_chain_type(model, retriever=Retriever())
    check(isinstance(plain.invoke({"query": QUESTIONS[4]["question"]})["result"], str), True)

    tools = ChatOpenAI(base_url=f"{TOOLS}/v1", api_key=KEY, model=MODEL, max_tokens=96, temperature=0)
    tools = tools.bind_tools([Weather], tool_choice="required")
    [call] = tools.invoke("Weather?").tool_calls
    check((call["name"], call["args"]["city"] in ("Oslo", "Lima")), ("Weather", True))
    called = None
    for piece in tools.stream("Weather?"):
        called = piece if called is None else called + piece
    check(called.tool_calls[0]["name"], "Weather")


def llama_index():
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.chat_engine import ContextChatEngine
    from llama_index.core.llms import ChatMessage
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.llms.openai_like import OpenAILike

    class Retriever(BaseRetriever):
        """Finds the documents of the handbook."""

        def _retrieve(self, query):
            asked = next(asked for asked in QUESTIONS if asked["question"] == query.query_str)
            nodes = [TextNode(text=each["text"], metadata={"title": each["title"]}, id_=each["id"]) for each in found(asked)]
            return [NodeWithScore(node=node, score=1 / (at + 1)) for at, node in enumerate(nodes)]

    model = OpenAILike(
        model=MODEL, api_base=f"{SMOLLM2}/v1", api_key=KEY, is_chat_model=True, context_window=4096, temperature=0, max_tokens=24,
        max_retries=0,
    )
    asked = QUESTIONS[5]
    messages = [ChatMessage(role="user", content=prompt(asked))]
    check(model.chat(messages).message.content, answer_to(asked))
    check("".join(piece.delta or "" for piece in model.stream_chat(messages)), answer_to(asked))
    engine = ContextChatEngine.from_defaults(retriever=Retriever(), llm=model, system_prompt=SYSTEM)
    first = engine.chat(asked["question"])
    check(len(first.source_nodes), 4)
    check(first.response != "", True)
    second = engine.stream_chat(QUESTIONS[6]["question"])
    text = "".join(second.response_gen)
    check((text != "", len(engine.chat_history)), (True, 4))


def haystack():
    from haystack import Document, Pipeline
    from haystack.components.builders import ChatPromptBuilder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    template = [
        ChatMessage.from_user(
            "{% for document in documents %}<document id=\"{{ document.meta.id }}\">\n{{ document.content }}\n</document>\n"
            "{% endfor %}\n{{ question }}"
        )
    ]
    pieces = []
    for callback in (None, lambda piece: pieces.append(piece.content or "")):
        pipeline = Pipeline()
        generator = OpenAIChatGenerator(
            api_key=Secret.from_token(KEY), model=MODEL, api_base_url=f"{SMOLLM2}/v1", max_retries=0, streaming_callback=callback,
            generation_kwargs={"temperature": 0, "max_tokens": 24},
        )
        pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables="*"))
        pipeline.add_component("model", generator)
        pipeline.connect("prompt.prompt", "model.messages")
        asked = QUESTIONS[7]
        documents = [Document(content=f"{each['title']}\n\n{each['text']}", meta={"id": each["id"]}) for each in found(asked)]
        reply = pipeline.run({"prompt": {"documents": documents, "question": asked["question"]}})["model"]["replies"][0]
        check(reply.text, answer_to(asked))
    check("".join(pieces), answer_to(QUESTIONS[7]))


def cohere():
    from cohere import ClientV2

    client = ClientV2(base_url=COHERE, api_key=KEY)
    asked = QUESTIONS[8]
    documents = [{"id": each["id"], "data": {"title": each["title"], "snippet": each["text"]}} for each in found(asked)]
    messages = [{"role": "user", "content": asked["question"]}]
    answer = client.chat(model=MODEL, messages=messages, documents=documents)
    check(answer.message.content[0].text, "The Selsby office.")
    check([source.id for source in answer.message.citations[0].sources], ["selsby-office"])
    events = list(client.chat_stream(model=MODEL, messages=messages, documents=documents[::-1]))
    text = "".join(event.delta.message.content.text for event in events if event.type == "content-delta")
    check((text, events[-1].type), ("The Selsby office.", "message-end"))


for name in CLIENTS:
    globals()[name]()
    print(name, CHECKS, flush=True)
print(CHECKS, "checks")
