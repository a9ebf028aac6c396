#include <string.h>

#include "base/buf.h"
#include "text/utf8.h"
#include "train/trainer.h"

/* Paths and names are bytes: what is not UTF-8 in them becomes U+FFFD. */
static json_t *text(const char *s)
{
  size_t n = strlen(s);
  if (gr_utf8_valid(s, n)) return json_stringn(s, n);
  gr_buf clean = { 0 };
  for (size_t at = 0, step; at < n; at += step) {
    size_t length = gr_utf8_length(s + at, n - at);
    step = length ? length : 1;
    if (length) gr_buf_append(&clean, s + at, length);
    else gr_buf_puts(&clean, "\xef\xbf\xbd");
  }
  json_t *out = clean.failed ? NULL : json_stringn(clean.data, clean.len);
  gr_buf_free(&clean);
  return out;
}

static json_t *whole(uint64_t n) { return json_integer((json_int_t)n); }

static json_t *memory_json(const gr_memory_plan *m)
{
  return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "program", whole(m->program), "adapter", whole(m->adapter), "training", whole(m->training),
                   "evaluation", whole(m->evaluation), "limit", whole(m->limit), "base_mapped", whole(m->base));
}

static json_t *plan_json(const gr_run_plan *p)
{
  return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:f,s:o,s:f,s:i,s:i,s:i,s:b,s:o,s:o,s:o,s:i,s:i,s:o,s:o}", "event", "plan", "steps",
                   whole(p->steps), "first_step", whole(p->first_step), "warmup", whole(p->warmup), "samples", whole(p->samples), "heldout",
                   whole(p->heldout), "epochs", p->epochs, "windows", whole(p->windows), "fill", p->fill, "window", p->window, "longest",
                   p->longest, "micro_batch", p->micro_batch, "recompute", p->recompute, "parameters", whole(p->parameters),
                   "adapted_tensors", whole(p->pairs), "adapted_stacks", whole(p->stacks), "experts", p->experts, "experts_used",
                   p->experts_used, "peak_bytes", whole(p->memory.peak), "memory", memory_json(&p->memory));
}

static json_t *eval_json(const gr_train_event *v)
{
  return json_pack("{s:s,s:o,s:f,s:f,s:o,s:f,s:f}", "event", "eval", "step", whole(v->step), "epoch", v->epoch, "loss", v->loss, "tokens",
                   whole(v->tokens), "improvement", v->improvement, "standard_error", v->standard_error);
}

static json_t *done_json(const gr_train_event *v)
{
  json_t *done = json_pack("{s:s,s:o,s:f,s:f,s:f,s:o,s:o,s:f,s:o,s:o}", "event", "done", "steps", whole(v->step), "loss_first",
                           v->loss_first, "loss_last", v->loss_last, "loss_mean", v->loss_mean, "eval_loss",
                           v->has_eval ? json_real(v->eval_loss) : json_null(), "adapter", text(v->adapter), "seconds", v->seconds,
                           "peak_bytes", whole(v->memory_bytes), "tokens_total", whole(v->tokens_total));
  if (!done || !v->has_eval) return done;
  json_object_set_new(done, "best_step", whole(v->best_step));
  json_object_set_new(done, "improvement", json_real(v->improvement));
  json_object_set_new(done, "standard_error", json_real(v->standard_error));
  return done;
}

json_t *gr_train_event_json(const gr_train_event *v)
{
  switch (v->kind) {
  case GR_EVENT_NOTE: return json_pack("{s:s,s:o}", "event", "note", "text", text(v->text));
  case GR_EVENT_PLAN: return plan_json(v->plan);
  case GR_EVENT_STEP:
    return json_pack("{s:s,s:o,s:f,s:f,s:f,s:f,s:o,s:o,s:f}", "event", "step", "step", whole(v->step), "epoch", v->epoch, "loss", v->loss,
                     "lr", v->lr, "grad_norm", v->grad_norm, "tokens", whole(v->tokens), "tokens_total", whole(v->tokens_total), "tok_s",
                     v->tok_s);
  case GR_EVENT_EVAL: return eval_json(v);
  case GR_EVENT_CHECKPOINT: return json_pack("{s:s,s:o,s:o}", "event", "checkpoint", "step", whole(v->step), "path", text(v->text));
  case GR_EVENT_DONE: return done_json(v);
  }
  return NULL;
}
