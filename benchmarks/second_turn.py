"""The time to the first token of a conversation's second turn, against its first, through the endpoint.

python benchmarks/second_turn.py [-m NAME] [-d DRAFTER] [--tokens N] [--turns N] [--json]

Each conversation begins differently, so that its first turn finds nothing in the prefix cache. The
second turn sends the first again, with its answer and a short question, as editors do.
"""

from __future__ import annotations

import argparse
import http.client
import json
from statistics import median

from servers import chat, server

from localspec import catalog

SENTENCES = (
    "The parser owns its buffer and gives slices of it to whoever asks. ",
    "Errors are values here, and each says which line it is about. ",
    "A cache in front of the store keeps the last few hundred answers. ",
    "Nothing waits for the network while a lock is held. ",
    "Tests run the real program and look at what it prints. ",
)
QUESTION = "Which of these would you change first?"
MOST = 0.1


def main() -> None:
    """Measure a few conversations and print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default=catalog.DEFAULT_MODEL)
    parser.add_argument("-d", "--drafter", default="auto")
    parser.add_argument("--tokens", type=int, default=4000, help="of the first turn's prompt")
    parser.add_argument("--turns", type=int, default=3, help="conversations")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = str(catalog.resolve_model(options.model))
    firsts, seconds = [], []
    with server("localspec", folder, [options.drafter]) as port:
        for number in range(options.turns):
            asked = [{"role": "user", "content": prompt(port, number, options.tokens)}]
            first = chat(port, asked, 8)
            asked += [
                {"role": "assistant", "content": first.text},
                {"role": "user", "content": QUESTION},
            ]
            firsts.append(first.first_s)
            seconds.append(chat(port, asked, 8).first_s)
    report = {
        "model": options.model,
        "drafter": options.drafter,
        "prompt_tokens": options.tokens,
        "first_turn_s": round(median(firsts), 4),
        "second_turn_s": round(median(seconds), 4),
        "ratio": round(median(b / a for a, b in zip(firsts, seconds, strict=True)), 4),
    }
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in report.items()))
        print(f"wanted: a ratio of at most {MOST}")


def prompt(port: int, number: int, num_tokens: int) -> str:
    """Notes of so many tokens, to within a sentence; each number's begin differently."""
    text = f"Notes, part {number + 1}.\n"
    added = 0
    # Counting takes a request, so it is done after every few sentences.
    step = max(1, num_tokens // 100)
    while count(port, text) < num_tokens:
        for _ in range(step):
            text += SENTENCES[(number + added) % len(SENTENCES)]
            added += 1
    return text


def count(port: int, text: str) -> int:
    """Tokens of a user's message as the model gets it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    connection.request("POST", "/v1/messages/count_tokens", body)
    num_tokens = json.loads(connection.getresponse().read())["input_tokens"]
    connection.close()
    return int(num_tokens)


if __name__ == "__main__":
    main()
