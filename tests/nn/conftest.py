"""Settings of the tests of modules: those of the tests of models."""

from models.conftest import _compile_quickly as _compile_quickly
