"""What steps and copies cost where no cost file says so: an 8B model in bfloat16 on one H100, roughly.

Estimates from the hardware's figures, not measured; `anbar calibrate` measures. Matrix products at some 500
TFLOP/s and never faster than 16 GB of weights at 2.5 TB/s, attention at the same rates, copies to and from
the host at 50 GB/s.
"""

from anbar.core.cost import CopyCost, EngineCost, TokenCurve

KV_BYTES_PER_TOKEN = 131_072
"""32 layers, 8 KV heads of 128 numbers, keys and values, 2 bytes each."""

H100_8B = EngineCost(
    tokens=TokenCurve(((1, 0.0075), (128, 0.0085), (512, 0.018), (2048, 0.068), (8192, 0.268))),
    prefill_s_per_token2=6.5e-10,
    decode_s_per_kv_byte=4e-13,
    load=CopyCost(latency_s=2e-5, s_per_copy=1e-6, s_per_byte=2e-11),
    store=CopyCost(latency_s=2e-5, s_per_copy=1e-6, s_per_byte=2e-11),
    copy_delay=0.05,
    front_s=0.003,
    front_s_per_token=1e-6,
)
