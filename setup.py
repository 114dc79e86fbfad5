"""Metadata, dependencies and the entry point; pyproject.toml configures the tools, constraints.txt has tested pins."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "megatron_longstraw" / "__init__.py").read_text())
README = HERE / "README.md"

setup(
    name="megatron_longstraw",
    version=VERSION.group(1) if VERSION else "0",
    description="Exact GRPO on million-token prompts, on a memory budget that stays fixed",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    # kernels/ has no __init__.py; it is part of the package through the link megatron_longstraw/kernels.
    packages=find_namespace_packages(include=["megatron_longstraw*"]),
    package_data={"megatron_longstraw": ["assets/**/*"]},
    # NVIDIA's Apex and Transformer Engine are used where they can be imported. PyPI's `apex` is another project.
    install_requires=[
        "torch>=2.6",
        "megatron-core>=0.16.1",
        "transformers>=5.0",
        "safetensors>=0.4",
        "numpy>=1.26",
        "omegaconf>=2.3",
        "PyYAML>=6.0",
        "pyarrow>=15",
        "rich>=13.7",
        "wandb>=0.19",
    ],
    extras_require={
        # What tools/get_smollm2.py reads its weights with, and the reward `math_verify`.
        "gguf": ["gguf>=0.10", "accelerate>=1.0"],
        "math": ["math-verify>=0.8"],
        "test": [
            "pytest>=8.3",
            "pytest-timeout>=2.3",
            "hypothesis>=6.100",
            "mypy>=1.11",
            "ruff>=0.9",
            "types-PyYAML",
            "gguf>=0.10",
            "accelerate>=1.0",
            "math-verify>=0.8",
        ],
    },
    entry_points={"console_scripts": ["longstraw = megatron_longstraw.cli:main"]},
)
