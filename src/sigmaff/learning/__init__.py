"""Active learning: a force field that asks for the labels it needs."""

from sigmaff.learning.campaign import CampaignResult, learn
from sigmaff.learning.config import CampaignConfig, ExploreConfig, RetrainConfig, SelectConfig, StartConfig, StopConfig
from sigmaff.learning.selection import Pick, select
