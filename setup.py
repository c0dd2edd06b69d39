"""What pyproject.toml cannot say: the configurations lie beside the package here,
and travel within it.
"""

from setuptools import find_namespace_packages, find_packages, setup

FOLDERS = find_namespace_packages("configs", exclude=["*__pycache__*"])

setup(
    packages=[
        *find_packages(include=["jaxformer*"]),
        "jaxformer.configs",
        *(f"jaxformer.configs.{name}" for name in FOLDERS),
    ],
    package_dir={"jaxformer.configs": "configs"},
)
