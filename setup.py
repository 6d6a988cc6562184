"""Packaging: the four source folders of the repository become one import package, ``karma_fx``.

``passes/``, ``models/`` and ``tools/`` lie beside ``karma_fx/`` in the repository, and are
imported as ``karma_fx.passes``, ``karma_fx.models`` and ``karma_fx.tools``, so that nothing with
a name as general as ``models`` lands in a user's site-packages.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

readme = Path(__file__).with_name("README.md")

MAPPED = ("passes", "models", "tools")

packages = ["karma_fx"]
packages += [f"karma_fx.{name}" for name in find_packages("karma_fx")]
packages += [
    f"karma_fx.{name}"
    for folder in MAPPED
    for name in find_packages(".", include=[folder, f"{folder}.*"])
]

setup(
    name="karma-fx",
    version="0.1.0",
    description="Out-of-core training for PyTorch: an unedited model inside a byte budget",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=packages,
    package_dir={"karma_fx": "karma_fx", **{f"karma_fx.{name}": name for name in MAPPED}},
    package_data={"karma_fx": ["py.typed"]},
    zip_safe=False,
    install_requires=[
        "torch>=2.11,<2.15",
        "numpy",
        "scipy",
        "sympy",
        "networkx",
        "tabulate",
    ],
    extras_require={
        "test": ["pytest", "hypothesis"],
        "lint": ["ruff", "mypy", "types-tabulate"],
    },
    entry_points={
        "torch_dynamo_backends": ["karma = karma_fx.backend:karma"],
        "console_scripts": ["karma = karma_fx.tools.cli:main"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
