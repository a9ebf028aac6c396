/* graft plan: what `graft train` with the same options would do and take, without doing it. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/train_run.h"

enum { PLACES_MAX = 64 };

/* Launches of one kind on one backend. */
struct placement {
  const char *backend, *op;
  size_t launches;
  double flops;
};

struct report {
  gr_train_view view;
  gr_run_plan plan;
  gr_run_time time;
  struct placement places[PLACES_MAX];
  size_t n_places;
  json_t *fallen; /* names of nodes that the wanted backend has no kernel for */
};

static void on_event(void *ctx, const gr_train_event *event)
{
  struct report *r = ctx;
  if (event->kind == GR_EVENT_PLAN) r->plan = *event->plan; /* printed once time and placement are known */
  else gr_train_view_event(&r->view, event);
}

static struct placement *place(struct report *r, const char *backend, const char *op)
{
  for (size_t i = 0; i < r->n_places; i++)
    if (strcmp(r->places[i].backend, backend) == 0 && strcmp(r->places[i].op, op) == 0) return &r->places[i];
  if (r->n_places == PLACES_MAX) return NULL;
  r->places[r->n_places] = (struct placement){ .backend = backend, .op = op };
  return &r->places[r->n_places++];
}

static void collect(struct report *r, const gr_plan *plan, const char *wanted)
{
  for (size_t i = 0; i < gr_plan_launches(plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(plan, i, &info);
    struct placement *p = place(r, info.backend, info.op);
    if (p) p->launches++, p->flops += info.cost.flops;
    if (info.node && strcmp(info.backend, wanted) != 0) json_array_append_new(r->fallen, json_string(info.name));
  }
}

static json_t *placement_json(const struct report *r)
{
  json_t *all = json_array();
  for (size_t i = 0; i < r->n_places; i++) {
    const struct placement *p = &r->places[i];
    json_array_append_new(
        all, json_pack("{s:s,s:s,s:I,s:f}", "backend", p->backend, "op", p->op, "launches", (json_int_t)p->launches, "flops", p->flops));
  }
  return all;
}

static json_t *seconds_json(double seconds) { return isnan(seconds) ? json_null() : json_real(seconds); }

static void print_json(const struct report *r)
{
  const gr_train_event event = { .kind = GR_EVENT_PLAN, .plan = &r->plan };
  json_t *out = gr_train_event_json(&event);
  json_object_set_new(out, "epoch_seconds", seconds_json(r->time.epoch));
  json_object_set_new(out, "seconds", seconds_json(r->time.run));
  json_object_set_new(out, "placement", placement_json(r));
  json_object_set(out, "fallen", r->fallen);
  gr_cli_json(out);
}

static void print_text(const struct report *r, const char *wanted)
{
  gr_train_view_plan(stdout, &r->plan);
  const gr_run_time *t = &r->time;
  if (isnan(t->run))
    printf("time     not measured: running a part of a step takes %.0f MB, and there is room for %.0f\n", (double)t->needed / 1e6,
           (double)t->room / 1e6);
  else printf("time     about %.0f s an epoch, %.0f s in all, evaluation aside\n", t->epoch, t->run);
  printf("places  ");
  for (size_t i = 0; i < r->n_places; i++) {
    size_t launches = 0;
    bool first = true;
    for (size_t k = 0; k < r->n_places; k++) {
      if (strcmp(r->places[k].backend, r->places[i].backend) != 0) continue;
      first &= k >= i;
      launches += r->places[k].launches;
    }
    if (first) printf(" %zu launches on %s", launches, r->places[i].backend);
  }
  putchar('\n');
  size_t n = json_array_size(r->fallen);
  if (n) printf("fallen   %zu nodes have no kernel on %s:", n, wanted);
  for (size_t i = 0; i < n; i++) printf(" %s", json_string_value(json_array_get(r->fallen, i)));
  if (n) putchar('\n');
}

static gr_status run(gr_train_command *c, struct report *r, gr_error *e)
{
  gr_train_view_open(&r->view, c);
  GR_TRY(gr_train_command_open(c, e));
  gr_trainer_setup setup = gr_train_command_setup(c);
  setup.plan_only = true;
  setup.on_event = on_event;
  setup.ctx = r;
  const char *wanted = c->m.backends[0]->ops->name;
  gr_trainer *t = NULL;
  GR_TRY(gr_trainer_open(&t, &setup, e));
  collect(r, gr_trainer_plan_of(t), wanted);
  gr_status s = gr_trainer_time(t, 2, &r->time, e);
  if (s == GR_OK && c->json) print_json(r);
  else if (s == GR_OK) print_text(r, wanted);
  gr_trainer_close(t);
  return s;
}

int gr_cmd_plan(int argc, char **argv)
{
  gr_train_command c;
  gr_error e = { 0 };
  struct report r = { .fallen = json_array() };
  int status = 0;
  gr_status s = gr_train_command_parse(&c, argc, argv, &e);
  if (s == GR_OK && c.help) gr_train_command_help("usage: graft plan -m MODEL -d DATA [train's options]");
  else if (s == GR_OK) s = run(&c, &r, &e);
  if (s != GR_OK) status = gr_cli_fail(&e);
  json_decref(r.fallen);
  gr_train_command_free(&c);
  return status;
}
