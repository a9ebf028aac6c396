#include "train/foreign.h"

#include <string.h>

static const char precision[] = "the adapter is trained in float32 on the base as its file holds it";
static const char quantized[] = "the base is trained on as its GGUF file is quantized: choose another file with -m";
static const char processor[] = "this build computes on the CPU: -t sets its threads";
static const char one_process[] = "a run is one process: -t sets its threads";
static const char kind[] = "LoRA is the only kind of adapter: --init-adapter begins from one that there is";
static const char optimizer[] = "AdamW is the only optimizer: --adam-beta1, --adam-beta2, --adam-epsilon and --weight-decay set it";
static const char evaluation[] = "evaluation follows every epoch: --eval-steps N adds more";
static const char conversation[] = "the chat template is the one in the model's file";
static const char nowhere[] = "nothing is sent anywhere: metrics are written beside the adapter";

struct foreign {
  const char *name, *instead;
};

/* Asked of any command. */
static const struct foreign everywhere[] = {
  { "ngl", processor },
  { "n_gpu_layers", processor },
  { "gpu_layers", processor },
  { "gpu", processor },
  { "gpus", processor },
  { "device", processor },
  { "device_map", processor },
  { "main_gpu", processor },
  { "cuda", processor },
  { "chat_template", conversation },
  { "flash_attention", "there is one way to compute attention here" },
  { "flash_attn", "there is one way to compute attention here" },
  { "attn_implementation", "there is one way to compute attention here" },
  { 0 },
};

/* Asked of a run. */
static const struct foreign trainers[] = {
  { "bf16", precision },
  { "fp16", precision },
  { "tf32", precision },
  { "dtype", precision },
  { "torch_dtype", precision },
  { "mixed_precision", precision },
  { "load_in_4bit", quantized },
  { "load_in_8bit", quantized },
  { "quantization_bit", quantized },
  { "bnb_4bit_quant_type", quantized },
  { "bnb_4bit_compute_dtype", quantized },
  { "deepspeed", one_process },
  { "fsdp", one_process },
  { "local_rank", one_process },
  { "num_processes", one_process },
  { "dataloader_num_workers", one_process },
  { "dataset_num_proc", one_process },
  { "preprocessing_num_workers", one_process },
  { "adapter", kind },
  { "peft_type", kind },
  { "finetuning_type", kind },
  { "fine_tune_type", kind },
  { "use_dora", kind },
  { "optim", optimizer },
  { "optimizer", optimizer },
  { "output_dir", "the adapter is one file: -o FILE.gguf" },
  { "adapter_path", "the adapter is one file: -o FILE.gguf" },
  { "save_path", "the adapter is one file: -o FILE.gguf" },
  { "eval_strategy", evaluation },
  { "evaluation_strategy", evaluation },
  { "do_eval", evaluation },
  { "save_strategy", "--save-steps N writes checkpoints" },
  { "logging_strategy", "--logging-steps N thins the lines" },
  { "logging_dir", "--report-to tensorboard writes beside the adapter" },
  { "template", conversation },
  { "dataset_text_field", "--format says which form the records have" },
  { "bias", "biases are not trained" },
  { "lora_bias", "biases are not trained" },
  { "modules_to_save", "only matrices of LoRA are trained: add output to --target-modules" },
  { "per_device_eval_batch_size", "evaluation runs as many windows side by side as training" },
  { "group_by_length", "samples are packed into full windows" },
  { "push_to_hub", nowhere },
  { "hub_model_id", nowhere },
  { "wandb_project", nowhere },
  { "run_name", nowhere },
  { 0 },
};

static bool is(const char *typed, size_t n, const char *name)
{
  if (strlen(name) != n) return false;
  for (size_t i = 0; i < n; i++)
    if (typed[i] != name[i] && !(typed[i] == '-' && name[i] == '_')) return false;
  return true;
}

static const char *find(const struct foreign *options, const char *typed, size_t n)
{
  for (const struct foreign *o = options; o->name; o++)
    if (is(typed, n, o->name)) return o->instead;
  return NULL;
}

const char *gr_foreign_option(const char *typed, size_t n, bool run)
{
  while (n && *typed == '-') typed++, n--;
  const char *instead = find(everywhere, typed, n);
  return instead || !run ? instead : find(trainers, typed, n);
}
