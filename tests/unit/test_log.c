#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "str.h"

/* Lines go to stderr: put a file in its place while `write_lines` runs, and return what it wrote. */
static char *capture(void (*write_lines)(void))
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    static char text[65536];

    dup2(fileno(file), STDERR_FILENO);
    write_lines();
    log_flush_repeats();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void write_plain(void)
{
    log_setup(LOG_LEVEL_INFO, false);
    log_worker(2);
    log_topic(LOG_LEVEL_WARNING, "orders", "parked: %s",
              "no\nsuch\ttopic\x1b[31m \xc2\x9b"
              "ä\xff");
    log_debug("not shown");
    log_worker(-1);
    log_write(LOG_LEVEL_ERROR, (const struct log_field[]){{"key", "a b\"c"}, {NULL, NULL}}, "plain");
}

static void text_format(void **state)
{
    (void)state;
    unsetenv("JOURNAL_STREAM");
    char *text = capture(write_plain);
    assert_int_equal(count(text, "\n"), 2);
    /* 2026-01-01T10:00:00.123Z warning worker=2 topic=orders parked: ... */
    assert_int_equal(text[4], '-');
    assert_int_equal(text[10], 'T');
    assert_int_equal(text[23], 'Z');
    assert_true(str_has_prefix(text + 24, " warning worker=2 topic=orders parked: "
                                          "no\\nsuch\\ttopic\\x1b[31m \\xc2\\x9bä\\xff\n"));
    assert_non_null(strstr(text, " error key=\"a b\\\"c\" plain\n"));
    assert_null(strstr(text, "not shown"));
}

static void write_to_the_journal(void)
{
    struct stat at;
    char stream[64];

    fstat(STDERR_FILENO, &at);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)at.st_dev, (uintmax_t)at.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    write_plain();
    unsetenv("JOURNAL_STREAM");
}

static void journald_format(void **state)
{
    (void)state;
    char *text = capture(write_to_the_journal);
    assert_true(str_has_prefix(text, "<4>warning worker=2 topic=orders parked: "));
    assert_non_null(strstr(text, "\n<3>error "));
}

/* A shell that a service started, and its stderr is a terminal. */
static void another_ones_journal(void **state)
{
    (void)state;
    setenv("JOURNAL_STREAM", "8:1234", 1);
    char *text = capture(write_plain);
    unsetenv("JOURNAL_STREAM");
    assert_null(strstr(text, "<4>"));
    assert_memory_equal(text + 24, " warning worker=2 ", 18);
}

static void write_json(void)
{
    log_setup(LOG_LEVEL_DEBUG, true);
    log_worker(0);
    log_write(LOG_LEVEL_DEBUG, (const struct log_field[]){{"topic", "a\"b"}, {"empty", NULL}, {NULL, NULL}},
              "line\n\"%s\" \xff", "quoted");
    log_worker(-1);
}

static void json_format(void **state)
{
    (void)state;
    char *text = capture(write_json);
    assert_true(str_has_prefix(text, "{\"time\":\""));
    assert_non_null(strstr(text, "\"level\":\"debug\",\"worker\":0,\"topic\":\"a\\\"b\",\"empty\":\"\","
                                 "\"message\":\"line\\n\\\"quoted\\\" \\ufffd\"}\n"));
    assert_int_equal(count(text, "\n"), 1);
}

static void write_repeats(void)
{
    log_setup(LOG_LEVEL_INFO, false);
    for (int i = 0; i < 100; i++)
        log_warning("broker away, try %d", i);
    log_topic(LOG_LEVEL_WARNING, "a", "parked");
    log_topic(LOG_LEVEL_WARNING, "b", "parked");
    log_topic(LOG_LEVEL_WARNING, "a", "parked");
    log_error("%s", "one thing");
    log_error("%s", "another thing");
    log_worker(3);
    log_warning("other place");
    log_worker(4);
    log_warning("other place");
    log_worker(-1);
}

static void repeats_are_counted(void **state)
{
    (void)state;
    char *text = capture(write_repeats);
    assert_int_equal(count(text, "broker away"), 2); /* the first, and at the end what became of the rest */
    assert_non_null(strstr(text, "broker away, try 0\n"));
    assert_non_null(strstr(text, " repeated=99 last=20"));
    assert_non_null(strstr(text, "Z broker away, try 99\n"));
    assert_int_equal(count(text, "topic=a parked"), 1);
    assert_int_equal(count(text, "topic=b parked"), 1);
    assert_int_equal(count(text, "one thing"), 1);
    assert_int_equal(count(text, "another thing"), 1);
    assert_int_equal(count(text, "other place"), 2);
}

static void write_two_outages(void)
{
    log_setup(LOG_LEVEL_INFO, false);
    log_worker(1);
    for (int i = 0; i < 5; i++) {
        log_warning("%s%s%s", "PostgreSQL ended the connection", "", "");
        log_warning("%s%s%s", "Kafka is away: Connection refused", "; ", "start it");
        log_warning("%s%s%s", "cannot mark: 01KXYZ8", "", "");
    }
    log_warning("%s%s%s", "cannot mark: 01KABC9", "", "");
    log_worker(-1);
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_WARNING; level++)
        log_write((enum log_level)level, NULL, "the same words");
}

/* One format says different things, and an outage must not hide another one. */
static void different_texts_are_different_lines(void **state)
{
    (void)state;
    char *text = capture(write_two_outages);
    assert_non_null(strstr(text, " warning worker=1 PostgreSQL ended the connection\n"));
    assert_non_null(strstr(text, " warning worker=1 Kafka is away: Connection refused; start it\n"));
    assert_non_null(strstr(text, " warning worker=1 cannot mark: 01KXYZ8\n"));
    assert_null(strstr(text, " warning worker=1 cannot mark: 01KABC9\n")); /* an id makes no other line */
    assert_non_null(strstr(text, "repeated=5 last=20"));
    assert_non_null(strstr(text, " error the same words\n"));
    assert_non_null(strstr(text, " warning the same words\n"));
}

static void write_flood(void)
{
    char word[8];

    log_setup(LOG_LEVEL_INFO, false);
    for (int i = 0; i < 676; i++) {
        snprintf(word, sizeof(word), "x%c%c", 'a' + i / 26, 'a' + i % 26);
        log_warning("the handler failed: %s", word);
    }
}

static void a_flood_is_none_because_its_words_differ(void **state)
{
    (void)state;
    char *text = capture(write_flood);
    assert_in_range(count(text, "the handler failed"), 2, 32);
    assert_non_null(strstr(text, "the handler failed: xzz\n"));
}

static void write_and_wait(void)
{
    log_setup(LOG_LEVEL_INFO, true);
    log_topic(LOG_LEVEL_WARNING, "orders", "parked");
    log_topic(LOG_LEVEL_WARNING, "orders", "parked");
    log_flush_old_repeats();
    log_warning("not yet");
    struct timespec window = {10, 100000000};
    nanosleep(&window, NULL);
    log_flush_old_repeats();
    log_warning("by now");
}

static void repeats_are_told_in_time(void **state)
{
    (void)state;
    char *text = capture(write_and_wait);
    const char *repeated = strstr(text, "\"topic\":\"orders\",\"repeated\":1,\"last\":\"20");
    assert_non_null(repeated);
    assert_true(repeated > strstr(text, "not yet") && repeated < strstr(text, "by now"));
    assert_int_equal(count(text, "parked"), 2);
}

static void write_many_kinds(void)
{
    char topic[16];

    log_setup(LOG_LEVEL_INFO, false);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 200; i++) {
            snprintf(topic, sizeof(topic), "t%d", i);
            log_topic(LOG_LEVEL_INFO, topic, "many kinds");
        }
    }
}

/* More kinds of lines than are remembered: written rather than lost. */
static void slots_overflow(void **state)
{
    (void)state;
    assert_in_range(count(capture(write_many_kinds), "many kinds"), 200, 400);
}

static void *write_thread(void *arg)
{
    log_worker(*(int *)arg);
    for (int i = 0; i < 200; i++) {
        char number[16];
        snprintf(number, sizeof(number), "%d", i);
        log_write(LOG_LEVEL_INFO, (const struct log_field[]){{"i", number}, {NULL, NULL}}, "from a thread");
    }
    return NULL;
}

static void write_threads(void)
{
    pthread_t threads[4];
    int workers[4] = {0, 1, 2, 3};

    log_setup(LOG_LEVEL_INFO, false);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, write_thread, &workers[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

static void threads_do_not_mix(void **state)
{
    (void)state;
    char *text = capture(write_threads);
    assert_int_equal(count(text, "from a thread\n"), 800);
    assert_int_equal(count(text, "\n"), 800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_format),
        cmocka_unit_test(journald_format),
        cmocka_unit_test(another_ones_journal),
        cmocka_unit_test(json_format),
        cmocka_unit_test(different_texts_are_different_lines),
        cmocka_unit_test(a_flood_is_none_because_its_words_differ),
        cmocka_unit_test(repeats_are_told_in_time),
        cmocka_unit_test(repeats_are_counted),
        cmocka_unit_test(slots_overflow),
        cmocka_unit_test(threads_do_not_mix),
    };
    return RUN_TESTS(tests);
}
