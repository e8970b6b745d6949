from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")


import keras


def pytest_report_header() -> str:
    return f"Keras {keras.__version__} on {keras.backend.backend()}"
