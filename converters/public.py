"""Public drafters and the targets they fit: Hub ids alone, nothing is fetched from here."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.models.config import Architecture


@dataclass(frozen=True, slots=True)
class PublicDrafter:
    """A drafter on the Hub, and the Hub ids of targets it was trained for."""

    name: str
    architecture: Architecture
    targets: tuple[str, ...]


PUBLIC_DRAFTERS = (
    PublicDrafter(
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3", ("meta-llama/Llama-3.1-8B-Instruct",)
    ),
    PublicDrafter(
        "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "eagle3", ("meta-llama/Llama-3.3-70B-Instruct",)
    ),
    PublicDrafter("AngelSlim/Qwen3-1.7B_eagle3", "eagle3", ("Qwen/Qwen3-1.7B",)),
    PublicDrafter("AngelSlim/Qwen3-4B_eagle3", "eagle3", ("Qwen/Qwen3-4B",)),
    PublicDrafter("AngelSlim/Qwen3-8B_eagle3", "eagle3", ("Qwen/Qwen3-8B",)),
    PublicDrafter("AngelSlim/Qwen3-14B_eagle3", "eagle3", ("Qwen/Qwen3-14B",)),
    PublicDrafter("AngelSlim/Qwen3-32B_eagle3", "eagle3", ("Qwen/Qwen3-32B",)),
    PublicDrafter("AngelSlim/Qwen3-a3B_eagle3", "eagle3", ("Qwen/Qwen3-30B-A3B",)),
    PublicDrafter("lmsys/Qwen3-235B-A22B-EAGLE3", "eagle3", ("Qwen/Qwen3-235B-A22B",)),
    PublicDrafter("lmsys/EAGLE3-gpt-oss-120b-bf16", "eagle3", ("openai/gpt-oss-120b",)),
    PublicDrafter("RedHatAI/Qwen3-8B-speculator.eagle3", "eagle3", ("Qwen/Qwen3-8B",)),
    PublicDrafter("deepseek-ai/eagle3_qwen3_4b_ttt7", "eagle3", ("Qwen/Qwen3-4B",)),
    PublicDrafter("deepseek-ai/eagle3_qwen3_8b_ttt7", "eagle3", ("Qwen/Qwen3-8B",)),
    PublicDrafter("deepseek-ai/eagle3_qwen3_14b_ttt7", "eagle3", ("Qwen/Qwen3-14B",)),
    PublicDrafter("z-lab/Qwen3-4B-DFlash-b16", "dflash", ("Qwen/Qwen3-4B",)),
    PublicDrafter("z-lab/Qwen3-8B-DFlash-b16", "dflash", ("Qwen/Qwen3-8B",)),
    PublicDrafter("z-lab/Qwen3.5-4B-DFlash", "dflash", ("Qwen/Qwen3.5-4B",)),
    PublicDrafter("z-lab/Qwen3.5-9B-DFlash", "dflash", ("Qwen/Qwen3.5-9B",)),
    PublicDrafter("z-lab/Qwen3.5-27B-DFlash", "dflash", ("Qwen/Qwen3.5-27B",)),
    PublicDrafter("z-lab/Qwen3.5-35B-A3B-DFlash", "dflash", ("Qwen/Qwen3.5-35B-A3B",)),
    PublicDrafter("z-lab/Qwen3.6-27B-DFlash", "dflash", ("Qwen/Qwen3.6-27B",)),
    PublicDrafter("z-lab/gpt-oss-20b-DFlash", "dflash", ("openai/gpt-oss-20b",)),
    PublicDrafter("z-lab/gpt-oss-120b-DFlash", "dflash", ("openai/gpt-oss-120b",)),
    PublicDrafter("deepseek-ai/dflash_qwen3_4b_block7", "dflash", ("Qwen/Qwen3-4B",)),
    PublicDrafter("deepseek-ai/dflash_qwen3_8b_block7", "dflash", ("Qwen/Qwen3-8B",)),
    PublicDrafter("deepseek-ai/dflash_qwen3_14b_block7", "dflash", ("Qwen/Qwen3-14B",)),
    PublicDrafter("AngelSlim/Qwen3-4b-dflare", "dflare", ("Qwen/Qwen3-4B",)),
    PublicDrafter("AngelSlim/Qwen3-8b-dflare", "dflare", ("Qwen/Qwen3-8B",)),
    PublicDrafter("AngelSlim/Gpt-oss-20b-dflare", "dflare", ("openai/gpt-oss-20b",)),
    PublicDrafter("deepseek-ai/dspark_qwen3_4b_block7", "dspark", ("Qwen/Qwen3-4B",)),
    PublicDrafter("deepseek-ai/dspark_qwen3_8b_block7", "dspark", ("Qwen/Qwen3-8B",)),
    PublicDrafter("deepseek-ai/dspark_qwen3_14b_block7", "dspark", ("Qwen/Qwen3-14B",)),
    PublicDrafter("LiquidAI/LFM2.5-2.6B-DSpark", "dspark", ("LiquidAI/LFM2.5-2.6B",)),
    PublicDrafter("AngelSlim/Qwen3-8B-DFly-Block8", "dfly", ("Qwen/Qwen3-8B",)),
    PublicDrafter("AngelSlim/Qwen3-8B-MTP-TTT3", "mtp", ("Qwen/Qwen3-8B",)),
)


def drafters_for(target: str) -> list[PublicDrafter]:
    """Public drafters of a target, by its Hub id; quantised copies count by their name.

    `mlx-community/Qwen3-8B-4bit` is taken for `Qwen/Qwen3-8B`.
    """
    name = target.rpartition("/")[2].lower()
    return [
        drafter
        for drafter in PUBLIC_DRAFTERS
        if any(_same(name, fits.rpartition("/")[2].lower()) for fits in drafter.targets)
    ]


def _same(name: str, fits: str) -> bool:
    rest = name.removeprefix(fits)
    return name.startswith(fits) and all(
        part in ("", "mlx", "bf16", "fp16", "4bit", "5bit", "6bit", "8bit", "3bit", "mxfp4", "dwq")
        for part in rest.split("-")
    )
