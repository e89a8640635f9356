"""`localspec verify`: whether a drafter changes what a model says."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.catalog import DEFAULT_MODEL
from localspec.cli import options
from localspec.cli.output import write
from localspec.cli.status import Status

if TYPE_CHECKING:
    from localspec.lab.law import Check
    from localspec.lab.verify import GreedyProof, SampledProof


def verify(
    model: options.Model = DEFAULT_MODEL,
    drafter: options.Drafter = "auto",
    prompts: Annotated[int, typer.Option(help="Prompts for the greedy part.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of each text.", min=2)] = 64,
    samples: Annotated[int, typer.Option(help="Tokens to sample; 0: none.", min=0)] = 2000,
    temperature: Annotated[float, typer.Option(help="Of the sampled part.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="As for generate.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="As for generate.")] = 0,
    min_p: Annotated[float, typer.Option(help="As for generate.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="As for generate.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="As for generate.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="As for generate.")] = 0.0,
    width: Annotated[str, typer.Option(help="Drafts a round verifies, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the sampled part.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Prove that a drafter changes nothing: greedy texts, and the law of sampled ones; else exit 1."""
    from localspec.cli.generate import parse_width
    from localspec.engine.sampling import SamplingParams
    from localspec.errors import UsageError
    from localspec.lab.prompts import bundled, spread
    from localspec.lab.verify import prove_greedy, prove_sampled
    from localspec.model import load

    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    if samples and sampling.greedy:
        raise UsageError(
            "temperature must be more than 0 to sample; --samples 0 leaves that part out"
        )
    num_drafts = parse_width(width)
    status = Status(sys.stderr)
    loaded = load(model, drafter=drafter, notify=status.say)
    ids = [loaded.encode(prompt.text) for prompt in spread(bundled(), 30)]
    greedy = loaded.measure(
        prove_greedy,
        ids[:prompts],
        tokens,
        stop_ids=loaded.stop_ids,
        width=num_drafts,
        progress=lambda done, total: status.share("greedy texts", done, total),
    )
    sampled = None
    if samples:
        sampled = loaded.measure(
            prove_sampled,
            ids,
            sampling,
            samples,
            tokens,
            seed=seed,
            width=num_drafts,
            progress=lambda done, total: status.share("sampled tokens", done, total),
        )
    status.clear()
    lossless = _lossless(greedy, sampled)
    if as_json:
        write(
            json.dumps(
                {
                    "model": loaded.name,
                    "drafter": loaded.drafter,
                    "lossless": lossless,
                    "greedy": {**asdict(greedy), "passed": greedy.passed},
                    "sampled": None if sampled is None else _sampled(sampled),
                }
            )
        )
    else:
        write("\n".join(_report(loaded.name, loaded.drafter, greedy, sampled)))
    if not lossless:
        raise typer.Exit(1)


def _lossless(greedy: GreedyProof, sampled: SampledProof | None) -> bool | None:
    """What was shown; None: nothing, since no draft was made."""
    if not greedy.passed or (sampled is not None and not sampled.passed):
        return False
    return True if greedy.proposed or (sampled is not None and sampled.proposed) else None


def _sampled(proof: SampledProof) -> dict[str, object]:
    names = [field.name for field in fields(proof.sampling) if field.name != "logit_bias"]
    sampling = {name: getattr(proof.sampling, name) for name in names}
    return {
        "sampling": sampling,
        "accepted": proof.accepted,
        "proposed": proof.proposed,
        "impossible": proof.impossible,
        "tokens": proof.law.as_dict(),
        "ids": proof.ids.as_dict(),
        "drafter": proof.drafter.as_dict(),
        "places": proof.places.as_dict(),
        "joint": proof.joint.as_dict(),
        "passed": proof.passed,
    }


def _report(
    model: str, drafter: str, greedy: GreedyProof, sampled: SampledProof | None
) -> list[str]:
    lines = [
        f"{model} with {drafter}",
        "",
        f"Greedy: {greedy.identical} of {greedy.prompts} texts ({greedy.tokens} tokens) are the same "
        f"with and without drafts; {greedy.accepted} of {greedy.proposed} drafts were accepted.",
    ]
    for each in greedy.divergences:
        where = f"  text {each.prompt + 1} parts at token {each.position + 1}: "
        if each.plain is None or each.drafted is None:
            lines.append(f"{where}one of the two ends there: NOT rounding")
            continue
        word = "rounding" if each.excused else "NOT rounding"
        lines.append(
            f"{where}the two best logits are {each.margin:.2g} apart there, wide passes are off by up "
            f"to {greedy.noise:.2g}: {word}"
        )
    if greedy.proposed:
        word = "as rounding has it" if greedy.is_rounding else "WRONG"
        lines.append(
            f"  passes over several tokens: logits off by up to {greedy.noise:.2g}, of which rounding "
            f"explains {greedy.rounding:.2g}: {word}"
        )
    if sampled is not None:
        from localspec.lab.law import ALARM

        lines += [
            "",
            f"Sampled: {sampled.law.samples} tokens against the model's exact probabilities; "
            f"{sampled.accepted} of {sampled.proposed} drafts were accepted.",
            _line("each token", sampled.law),
            _line("token ids", sampled.ids),
            _line("what the drafter likes", sampled.drafter),
            _line("by place in the round", sampled.places),
            _line("three tokens jointly", sampled.joint),
        ]
        if sampled.impossible:
            lines.append(f"  {sampled.impossible} tokens came that the filters exclude: FAILED")
        lines += [
            f"  A test fails where p is below {ALARM:g}, which chance alone brings about once in "
            f"{1 / ALARM:,.0f} tests.",
            f"  A shift of {sampled.law.noticeable:.1%} of probability would have been noticed; "
            "more samples would notice smaller ones.",
        ]
    return [*lines, "", _verdict(greedy, sampled)]


def _line(name: str, check: Check) -> str:
    if not check.degrees:
        return f"  {name:<22} too few samples to tell anything"
    word = "as chance has it" if check.passed else "FAILED"
    return (
        f"  {name:<22} chi-square {check.statistic:.1f} with {check.degrees} degrees of freedom, "
        f"p = {check.p_value:.3g}: {word}"
    )


def _verdict(greedy: GreedyProof, sampled: SampledProof | None) -> str:
    lossless = _lossless(greedy, sampled)
    if lossless is False:
        return (
            "NOT LOSSLESS: this drafter changes what the model says, by more than rounding or chance "
            "can. Please report it with this output."
        )
    if lossless is None:
        return (
            "NOTHING WAS PUT TO THE TEST: no draft was made on these prompts, so the text is plain "
            "decoding's. More --tokens or --samples, or a --width, may bring some."
        )
    end = ""
    if greedy.divergences:
        end = (
            " Where two tokens were equally good up to rounding, the other one was taken; either is "
            "the model's own best choice."
        )
    if sampled is None:
        return f"LOSSLESS (greedy): the drafter changes the speed, not the text.{end}"
    return (
        "LOSSLESS: the drafter changes the speed, not the text, and sampled text has the model's own "
        f"probabilities as far as {sampled.law.samples} tokens can tell.{end}"
    )
