"""The two settings of the paper's studies: a batch that shares its statistics, and views drawn for every image."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import sita_adapters as sita
from sita_adapters.views import SYMMETRIES, content_seed
from tests.nets import tiny_cnn
from tests.reference import Row, run_rows

PRIOR = 0.6
