"""Flash attention in Pallas: exact attention whose scores never reach memory, forward and backward."""

from pallas_kernels.flash.attention import flash_attention

__all__ = ["flash_attention"]
