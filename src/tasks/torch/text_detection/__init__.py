"""Find words: the maps that a detector learns, its loss, and boxes, merged and counted."""

from src.tasks.torch.text_detection.task import TextDetection

__all__ = ["TextDetection"]
