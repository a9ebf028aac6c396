/* Which linears a target module means; the rules stand at gr_lora_match. */
#include "model/targets.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "model/lora.h"

/* Hugging Face's names; one may stand for several of ours. Those of routed experts carry "experts.", since q_proj and its like never mean
 * them. Mixtral numbers its three: w1 gate, w2 down, w3 up. */
static const struct {
  const char *alias, *name;
} aliases[] = {
  { "q_proj", "attn_q" },
  { "k_proj", "attn_k" },
  { "v_proj", "attn_v" },
  { "o_proj", "attn_output" },
  { "qkv_proj", "attn_qkv" },
  { "up_proj", "ffn_up" },
  { "up_proj", "ffn_up_shexp" },
  { "gate_proj", "ffn_gate" },
  { "gate_proj", "ffn_gate_shexp" },
  { "down_proj", "ffn_down" },
  { "down_proj", "ffn_down_shexp" },
  { "gate_up_proj", "ffn_up" }, /* phi3's */
  { "shared_expert.up_proj", "ffn_up_shexp" },
  { "shared_expert.gate_proj", "ffn_gate_shexp" },
  { "shared_expert.down_proj", "ffn_down_shexp" },
  { "shared_expert_gate", "ffn_gate_inp_shexp" },
  { "gate", "ffn_gate_inp" },
  { "router", "ffn_gate_inp" },
  { "experts.gate_up_proj", "ffn_gate_up_exps" },
  { "experts.gate_up_proj", "ffn_gate_exps" },
  { "experts.gate_up_proj", "ffn_up_exps" },
  { "experts.gate_proj", "ffn_gate_exps" },
  { "experts.up_proj", "ffn_up_exps" },
  { "experts.down_proj", "ffn_down_exps" },
  { "w1", "ffn_gate_exps" },
  { "w2", "ffn_down_exps" },
  { "w3", "ffn_up_exps" },
  { "lm_head", "output" },
  { "embed_tokens", "token_embd" }, /* no linear, so that it is refused by a name it is known by */
};

/* Modules that may stand before an alias. */
static const char *const modules[] = { "self_attn.", "mlp.", "feed_forward.", "block_sparse_moe." };

void gr_lora_short_name(const char *name, char *out, size_t size)
{
  if (strncmp(name, "blk.", 4) == 0) {
    const char *p = strchr(name + 4, '.');
    if (p) name = p + 1;
  }
  size_t n = strlen(name);
  if (n > 7 && strcmp(name + n - 7, ".weight") == 0) n -= 7;
  snprintf(out, size, "%.*s", (int)n, name);
}

static bool match_expression(const char *expression, const char *name)
{
  gr_buf whole = { 0 };
  gr_buf_printf(&whole, "^(%s)$", expression);
  regex_t re;
  bool hit = !whole.failed && regcomp(&re, whole.data, REG_EXTENDED | REG_NOSUB) == 0;
  if (hit) {
    hit = regexec(&re, name, 0, NULL, 0) == 0;
    regfree(&re);
  }
  gr_buf_free(&whole);
  return hit;
}

static bool match_alias(const char *target, const char *brief)
{
  for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
    size_t n = strlen(modules[i]);
    if (strncmp(target, modules[i], n) != 0) continue;
    target += n;
    break;
  }
  for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
    if (strcmp(target, aliases[i].alias) == 0 && strcmp(brief, aliases[i].name) == 0) return true;
  return false;
}

static bool ends_with(const char *text, const char *tail)
{
  size_t n = strlen(text), k = strlen(tail);
  return n >= k && strcmp(text + n - k, tail) == 0;
}

bool gr_lora_match(const char *target, const char *name)
{
  if (strncmp(target, "re:", 3) == 0) return match_expression(target + 3, name);
  char brief[64];
  gr_lora_short_name(name, brief, sizeof brief);
  bool experts = ends_with(brief, "_exps"), router = strncmp(brief, "ffn_gate_inp", 12) == 0;
  bool attention = strncmp(brief, "attn_", 5) == 0, mlp = strncmp(brief, "ffn_", 4) == 0 && !experts && !router;
  if (strcmp(target, "attention") == 0) return attention;
  if (strcmp(target, "mlp") == 0) return mlp;
  if (strcmp(target, "experts") == 0) return experts;
  if (strcmp(target, "all-linear") == 0) return attention || mlp;
  if (match_alias(target, brief) || strcmp(target, brief) == 0 || strcmp(target, name) == 0) return true;
  size_t n = strlen(target);
  return strncmp(target, name, n) == 0 && strcmp(name + n, ".weight") == 0;
}

gr_status gr_lora_check_expression(const char *target, gr_error *e)
{
  regex_t re;
  if (strncmp(target, "re:", 3) != 0) return GR_OK;
  if (regcomp(&re, target + 3, REG_EXTENDED | REG_NOSUB) != 0)
    return gr_fail(e, GR_ERR_USAGE, "the target module '%s': '%s' is not a regular expression (POSIX extended)", target, target + 3);
  regfree(&re);
  return GR_OK;
}
