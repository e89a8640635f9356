from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentencepiece_folder import write_sentencepiece_folder

from localspec.errors import UsageError
from localspec.text.chat import has_chat_template, render_chat
from localspec.text.tokenizer import load_tokenizer

TEMPLATE = """\
{% for message in messages %}<{{ message['role'] }}>{{ message['content'] + '' }}
{% endfor %}{% if tools %}[{{ tools[0]['name'] }}]{% endif %}\
{% if shout %}!{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}\
{% for message in messages %}\
{% set expected = ['user', 'assistant'][loop.index0 % 2] %}\
{% if message['role'] != expected %}{{ raise_exception('users, please') }}{% endif %}\
{% endfor %}
"""
USER = {"role": "user", "content": "the fox"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    folder = write_sentencepiece_folder(tmp_path)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return load_tokenizer(folder)


def test_messages_become_the_ids_of_the_rendered_text(tokenizer: Any) -> None:
    assert has_chat_template(tokenizer)
    ids = render_chat(tokenizer, [USER])
    assert ids == tokenizer.encode("<user>the fox\n<assistant>", add_special_tokens=False)


def test_tools_and_options_reach_the_template(tokenizer: Any) -> None:
    ids = render_chat(
        tokenizer,
        [USER],
        tools=[{"name": "look"}],
        add_generation_prompt=False,
        template_options={"shout": True},
    )
    assert tokenizer.decode(ids) == "<user>the fox\n[look]!"


def test_a_system_prompt_that_is_refused_goes_before_the_first_message(tokenizer: Any) -> None:
    system = {"role": "system", "content": "Be brief."}
    ids = render_chat(tokenizer, [system, USER, USER])
    assert tokenizer.decode(ids) == "<user>Be brief.\n\nthe fox\n\nthe fox\n<assistant>"


def test_a_template_that_refuses_gives_its_reason(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="these messages: users, please"):
        render_chat(tokenizer, [{"role": "assistant", "content": "x"}])


def test_a_template_that_fails_is_one_sentence(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="cannot render these messages: ") as caught:
        render_chat(tokenizer, [{"role": "user", "content": None}])
    assert "\n" not in str(caught.value)


def test_without_a_template_messages_are_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_sentencepiece_folder(tmp_path))
    assert not has_chat_template(tokenizer)
    with pytest.raises(UsageError, match="no chat template"):
        render_chat(tokenizer, [USER])
