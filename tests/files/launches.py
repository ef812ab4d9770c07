"""Configurations and logs as people have them, small enough to read in a test."""

from __future__ import annotations

MEGATRON_SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=4
# Trains an 8B model.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
SAVE=${1:-"checkpoints/8b"}
DATA=${2:-"MOCK"}
mkdir -p "$(dirname "$SAVE")"

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=4; PP=2      # inside a node; two nodes
DTYPE="bf16"

DISTRIBUTED=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES   # whole nodes
    --master_addr ${MASTER_ADDR:-localhost}
)
MODEL=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    # --num-experts 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
)
DTYPE_ARGS=(--bf16)
if [[ "$DTYPE" == "fp8" ]] && [ -n "$DTYPE" ]; then
    DTYPE_ARGS+=("--fp8-format hybrid")
fi
if [ "$DATA" = "MOCK" ] || [[ -z "$DATA" ]]; then
    TOKENS="--mock-data --tokenizer-type NullTokenizer --vocab-size 128256"
else
    TOKENS="--data-path $DATA --tokenizer-type HuggingFaceTokenizer"
fi
PARALLEL="
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size=$PP \
    --sequence-parallel --use-distributed-optimizer
"
PARALLEL+=" --overlap-grad-reduce"

torchrun "${DISTRIBUTED[@]}" pretrain_gpt.py \
    "${MODEL[@]}" \
    ${DTYPE_ARGS[@]} $TOKENS $PARALLEL \
    --micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 8)) \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --lr 3e-4 --train-iters 100 --log-throughput --save $SAVE \
    --house-made-option 3 2>&1 | tee run.log
"""

TORCHTITAN_TOML = """
[job]
description = "Llama 3 70B"
[model]
name = "llama3"
flavor = "70B"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""

DEEPSPEED_JSON = """{
 "train_batch_size": "auto",
 "train_micro_batch_size_per_gpu": "auto",
 "gradient_accumulation_steps": "auto",
 "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8},
 "bf16": {"enabled": "auto"},
 "gradient_clipping": 1.0
}
"""
DEEPSPEED_SCRIPT = """deepspeed --num_gpus 8 train.py --deepspeed ds.json \\
    --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True --gradient_checkpointing True \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 16 --model_max_length 4096 \\
    --learning_rate 2e-5 --output_dir out
"""

MEGATRON_DUMP = """using world size: 32, data-parallel size: 4, context-parallel size: 1
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  attention_dropout ............................... 0.0
  bf16 ............................................ True
  context_parallel_size ........................... 1
  data_parallel_size .............................. 4
  ffn_hidden_size ................................. 14336
  fp8 ............................................. None
  global_batch_size ............................... 256
  group_query_attention ........................... True
  hidden_dropout .................................. 0.0
  hidden_size ..................................... 4096
  max_position_embeddings ......................... 8192
  micro_batch_size ................................ 1
  normalization ................................... RMSNorm
  num_attention_heads ............................. 32
  num_layers ...................................... 32
  num_query_groups ................................ 8
  params_dtype .................................... torch.bfloat16
  pipeline_model_parallel_size .................... 2
  position_embedding_type ......................... rope
  recompute_granularity ........................... full
  recompute_method ................................ uniform
  recompute_num_layers ............................ 1
  rotary_base ..................................... 500000
  seq_length ...................................... 8192
  sequence_parallel ............................... True
  some_future_option .............................. 17
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 4
  untie_embeddings_and_output_weights ............. True
  use_distributed_optimizer ....................... True
  vocab_size ...................................... 128256
  world_size ...................................... 32
-------------------- end of arguments ---------------------
"""


def megatron_log(times_ms, batch=256):
    """Iterations of these milliseconds, as Megatron-LM logs them."""
    lines = [
        f" [2025-01-01 00:00:{i % 60:02d}] iteration {i:8d}/     100 | consumed samples: "
        f"{i * batch:12d} | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): {4e6 / ms:.1f} | learning rate: 1.000000E-06 | global batch size: "
        f"{batch:5d} | lm loss: 1.2E+01 | loss scale: 1.0 | grad norm: 3.1 |"
        for i, ms in enumerate(times_ms, start=1)
    ]
    memory = (
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 20000.1 | max allocated: 40000.2 "
        "| reserved: 44000.0 | max reserved: 45056.0"
    )
    return "\n".join([*lines[:2], memory, *lines[2:]]) + "\n"


def torchtitan_log(rates):
    """Steps of these tokens per second, as torchtitan logs them, coloured and on two ranks."""
    head = [
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "Building 2-D device mesh with ['dp_shard', 'tp'], [32, 8]",
        "Model llama3 70B size: 70,553,706,496 total parameters",
        "Trainer is initialized with local batch size 8, global batch size 256, gradient "
        "accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)",
    ]
    lines = [f"[rank0]:[titan] 2025-06-01 10:00:00,000 - root - INFO - {text}" for text in head]
    for index, rate in enumerate(rates):
        step = max(10 * index, 1)
        for rank in (0, 1):
            lines.append(
                f"[rank{rank}]:[titan] 2025-06-01 10:00:00,000 - root - INFO - \x1b[31mstep: "
                f"{step:2}  \x1b[32mloss:  8.1234  \x1b[38mgrad_norm:  1.2  \x1b[36mmemory: "
                f"{60 + rank:5.2f}GiB(77.41%)  \x1b[34mtps: {rate:,}  \x1b[36mtflops: 412.10  "
                f"\x1b[35mmfu: 41.67%\x1b[39m"
            )
    return "\n".join(lines) + "\n"
