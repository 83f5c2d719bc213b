/* What every unit test includes. cmocka wants these headers before its own. */
#ifndef OUTBOXD_UNIT_H
#define OUTBOXD_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SLICE(text) ((struct slice){text, sizeof(text) - 1})

#define RUN_TESTS(tests) cmocka_run_group_tests(tests, NULL, NULL)

#endif
