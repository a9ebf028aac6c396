/* Arguments, and the global functions that templates may call. */
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

bool gr_jinja_bind(jinja_ctx *ctx, const char *who, const jinja_args *args, const char *const *params, size_t n_params, size_t required,
                   jinja_value *out)
{
  if (args->n > n_params) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s takes at most %zu arguments, not %zu", who, n_params, args->n);
  for (size_t i = 0; i < n_params; i++) out[i] = i < args->n ? args->positional[i] : (jinja_value){ .type = JINJA_ABSENT };
  for (size_t k = 0; k < args->n_keyword; k++) {
    size_t i = 0;
    while (i < n_params && strcmp(params[i], args->names[k])) i++;
    if (i == n_params) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s has no argument named '%s'", who, args->names[k]);
    if (out[i].type != JINJA_ABSENT) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s got the argument '%s' twice", who, params[i]);
    out[i] = args->keyword[k];
  }
  for (size_t i = 0; i < required; i++)
    if (out[i].type == JINJA_ABSENT) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s needs the argument '%s'", who, params[i]);
  return true;
}

bool gr_jinja_want_string(jinja_ctx *ctx, const char *who, const jinja_value *v)
{
  if (v->type == JINJA_STRING) return true;
  if (v->type == JINJA_UNDEFINED && v->u.hint)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s needs a string, but '%s' is undefined", who, v->u.hint);
  return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s needs a string, not %s", who, gr_jinja_type_name(v));
}

bool gr_jinja_want_int(jinja_ctx *ctx, const char *who, const jinja_value *v, int64_t *out)
{
  if (v->type == JINJA_INT) *out = v->u.integer;
  else if (v->type == JINJA_BOOL) *out = v->u.boolean;
  else return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s needs an integer, not %s", who, gr_jinja_type_name(v));
  return true;
}

/* --- Functions ------------------------------------------------------------------------------------------------------------------- */

static bool fn_raise_exception(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "message" };
  jinja_value message, text;
  if (!gr_jinja_bind(ctx, "raise_exception", args, params, 1, 1, &message) || !gr_jinja_text(ctx, &message, &text)) return false;
  *out = text;
  const jinja_string *s = text.u.string;
  return gr_jinja_fail(ctx, GR_ERR_MISMATCH, "the template refuses the conversation: %.*s", s->len < 400 ? (int)s->len : 400, s->data);
}

static bool fn_range(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  enum { RANGE_MAX = 100000 }; /* what Jinja2's sandbox allows */
  static const char *const params[] = { "start", "stop", "step" };
  jinja_value given[3];
  int64_t start = 0, stop = 0, step = 1;
  if (!gr_jinja_bind(ctx, "range", args, params, 3, 1, given)) return false;
  bool one = given[1].type == JINJA_ABSENT;
  if (!gr_jinja_want_int(ctx, "range", &given[one ? 0 : 1], &stop)) return false;
  if (!one && !gr_jinja_want_int(ctx, "range", &given[0], &start)) return false;
  if (given[2].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "range", &given[2], &step)) return false;
  if (!step) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "the step of range cannot be 0");
  if (!gr_jinja_list(ctx, 0, out)) return false;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (out->u.list->n == RANGE_MAX) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "range gives more than %d numbers", RANGE_MAX);
    if (!gr_jinja_list_add(ctx, out->u.list, gr_jinja_int(i, 0))) return false;
    if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
  }
  return true;
}

/* dict(...) and namespace(...): keyword arguments, after the entries of a dictionary if one is given. */
static bool fn_dict(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  if (args->n > 1 || (args->n && args->positional[0].type != JINJA_DICT))
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "dict and namespace take named arguments, or one dictionary");
  if (!gr_jinja_dict(ctx, args->n_keyword, out)) return false;
  const jinja_dict *from = args->n ? args->positional[0].u.dict : NULL;
  for (size_t i = 0; from && i < from->n; i++)
    if (!gr_jinja_dict_put(ctx, out->u.dict, from->entries[i].key, from->entries[i].value)) return false;
  for (size_t i = 0; i < args->n_keyword; i++) {
    jinja_value key;
    if (!gr_jinja_literal(ctx, args->names[i], &key) || !gr_jinja_dict_put(ctx, out->u.dict, key, args->keyword[i])) return false;
  }
  return true;
}

static bool fn_namespace(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  if (!fn_dict(ctx, args, out)) return false;
  for (size_t i = 0; i < out->u.dict->n; i++) {
    const jinja_value *key = &out->u.dict->entries[i].key;
    if (key->type == JINJA_STRING && key->u.string->len && key->u.string->data[0] == '_')
      return gr_jinja_fail(ctx, GR_ERR_FORMAT, "a namespace has no attributes that begin with an underscore");
  }
  out->type = JINJA_NAMESPACE;
  return true;
}

static bool fn_strftime_now(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "format" };
  jinja_value format;
  if (!gr_jinja_bind(ctx, "strftime_now", args, params, 1, 1, &format)) return false;
  return gr_jinja_want_string(ctx, "strftime_now", &format) && gr_jinja_strftime(ctx, &format, out);
}

static const struct {
  const char *name;
  bool (*call)(jinja_ctx *ctx, const jinja_args *args, jinja_value *out);
} functions[] = { { "raise_exception", fn_raise_exception },
                  { "range", fn_range },
                  { "dict", fn_dict },
                  { "namespace", fn_namespace },
                  { "strftime_now", fn_strftime_now } };

size_t gr_jinja_function_find(const char *name)
{
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].name, name)) return i;
  return SIZE_MAX;
}

bool gr_jinja_function_call(jinja_ctx *ctx, size_t entry, const jinja_args *args, jinja_value *out)
{
  return functions[entry].call(ctx, args, out);
}

/* --- Dates ----------------------------------------------------------------------------------------------------------------------- */

typedef struct date {
  int64_t year;
  int month, day, hour, minute, second, weekday, yearday; /* month and day from 1, weekday from Sunday, yearday from 1 */
} date;

/* The Gregorian calendar by eras of 400 years (146097 days), counted from a 1st of March. */
static date date_of(int64_t seconds)
{
  int64_t day = seconds / 86400, left = seconds % 86400;
  if (left < 0) {
    left += 86400;
    day--;
  }
  int64_t shifted = day + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
  int64_t of_era = shifted - era * 146097;
  int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  int64_t of_year = of_era - (365 * year + year / 4 - year / 100), m = (5 * of_year + 2) / 153;
  date d = { .year = year + era * 400, .day = (int)(of_year - (153 * m + 2) / 5 + 1), .month = (int)(m < 10 ? m + 3 : m - 9) };
  if (d.month <= 2) d.year++;
  static const int before[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 };
  bool leap = (d.year % 4 == 0 && d.year % 100 != 0) || d.year % 400 == 0;
  d.yearday = before[d.month - 1] + d.day + (leap && d.month > 2);
  d.weekday = (int)(((day + 4) % 7 + 7) % 7);
  d.hour = (int)(left / 3600);
  d.minute = (int)(left / 60 % 60);
  d.second = (int)(left % 60);
  return d;
}

/* One directive into room (64 bytes), in English; false when there is no such one. */
static bool date_part(const date *d, char directive, bool padded, char *room)
{
  static const char *const months[] = { "January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December" };
  static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
  int hour12 = d->hour % 12 ? d->hour % 12 : 12, width = padded ? 2 : 1;
  long long year = (long long)d->year;
  switch (directive) {
  case 'Y': snprintf(room, 64, "%lld", year); break;
  case 'y': snprintf(room, 64, "%0*lld", width, (year % 100 + 100) % 100); break;
  case 'm': snprintf(room, 64, "%0*d", width, d->month); break;
  case 'B': snprintf(room, 64, "%s", months[d->month - 1]); break;
  case 'b':
  case 'h': snprintf(room, 64, "%.3s", months[d->month - 1]); break;
  case 'd': snprintf(room, 64, "%0*d", width, d->day); break;
  case 'e': snprintf(room, 64, padded ? "%2d" : "%d", d->day); break;
  case 'A': snprintf(room, 64, "%s", days[d->weekday]); break;
  case 'a': snprintf(room, 64, "%.3s", days[d->weekday]); break;
  case 'u': snprintf(room, 64, "%d", d->weekday ? d->weekday : 7); break;
  case 'w': snprintf(room, 64, "%d", d->weekday); break;
  case 'j': snprintf(room, 64, "%0*d", padded ? 3 : 1, d->yearday); break;
  case 'H': snprintf(room, 64, "%0*d", width, d->hour); break;
  case 'I': snprintf(room, 64, "%0*d", width, hour12); break;
  case 'M': snprintf(room, 64, "%0*d", width, d->minute); break;
  case 'S': snprintf(room, 64, "%0*d", width, d->second); break;
  case 'p': snprintf(room, 64, "%s", d->hour < 12 ? "AM" : "PM"); break;
  case 'F': snprintf(room, 64, "%lld-%02d-%02d", year, d->month, d->day); break;
  case 'T': snprintf(room, 64, "%02d:%02d:%02d", d->hour, d->minute, d->second); break;
  case 'R': snprintf(room, 64, "%02d:%02d", d->hour, d->minute); break;
  case 'D':
  case 'x': snprintf(room, 64, "%02d/%02d/%02d", d->month, d->day, (int)((year % 100 + 100) % 100)); break;
  case 'X': snprintf(room, 64, "%02d:%02d:%02d", d->hour, d->minute, d->second); break;
  case 'c':
    snprintf(room, 64, "%.3s %.3s %2d %02d:%02d:%02d %lld", days[d->weekday], months[d->month - 1], d->day, d->hour, d->minute, d->second,
             year);
    break;
  case '%': snprintf(room, 64, "%%"); break;
  default: return false;
  }
  return true;
}

bool gr_jinja_strftime(jinja_ctx *ctx, const jinja_value *format, jinja_value *out)
{
  const jinja_string *s = format->u.string;
  date d = date_of(ctx->now);
  gr_jinja_builder b = { 0 };
  bool ok = true;
  for (size_t at = 0; ok && at < s->len;) {
    const char *percent = memchr(s->data + at, '%', s->len - at);
    size_t next = percent ? (size_t)(percent - s->data) : s->len;
    ok = gr_jinja_put_part(ctx, &b, format, at, next);
    at = next;
    if (!ok || at == s->len) break;
    bool bare = at + 1 < s->len && s->data[at + 1] == '-';
    size_t letter = at + 1 + bare;
    char room[64];
    if (letter >= s->len || !date_part(&d, s->data[letter], !bare, room)) {
      ok = gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "strftime_now does not know the directive '%.*s'",
                         letter < s->len ? (int)(letter - at + 1) : 1, s->data + at);
      break;
    }
    ok = gr_jinja_put(ctx, &b, room, strlen(room), gr_jinja_tag_at(format, at));
    at = letter + 1;
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}
