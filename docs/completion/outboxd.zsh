#compdef outboxd
# zsh completion of outboxd; written by tools/reference.py
local -a commands=(
    'run:relay events until SIGTERM'
    'consume:call a SQL function once for each event of some topics, until SIGTERM'
    'migrate:bring the tables into the database, or see what is pending'
    'status:show the backlog, its age, failures, dead events and parked topics'
    'check:a doctor\: looks at both sides and names the remedy for what it finds'
    'events:look at events; retry or discard those that failed'
    'purge:delete rows that are finished and past their time, until SIGTERM or once'
    'inbox:look at events that a consumer gave up; retry or discard them'
    'config:show the settings in force; secrets are hidden'
    'dev-broker:run an in-memory Kafka for demos on this machine'
    'ulid:print one or N new ids'
    'version:print the version'
    'help:show this text, or the usage of a command'
)
if ((CURRENT == 2)); then
    _describe command commands
    return
fi
local command=$words[2]
shift words
((CURRENT--))
case $command in
    help) _describe command commands ;;
    migrate)
        _arguments \
            '--to[the version to go to; down needs it]:N:' \
            '1:action:(up down status print)'
        ;;
    status)
        _arguments \
            '--json[answer as JSON]' \
            '--watch[one screen, redrawn until Ctrl-C]'
        ;;
    check)
        _arguments \
            '--json[answer as JSON]'
        ;;
    events)
        _arguments \
            '--status[only these, separated by commas; failed means refused, held rows are changed only when named]:STATUS:(new sent failed dead held)' \
            '--topic[only of this topic, or routed to it]:TOPIC:' \
            '--key[only of this key (partition_key, else aggregate_id)]:KEY:' \
            '--tenant[only of this tenant]:TENANT:' \
            '--id[only this event]:ID:' \
            '--since[only written since\: a duration such as 2h, or RFC 3339]:TIME:' \
            '--limit[at most N events; 50 for list, no limit for changes]:N:' \
            '--all[without a filter; for list\: no limit]' \
            '--dry-run[say what would happen and change nothing]' \
            '--json[answer as JSON]' \
            '1:action:(list show retry discard)'
        ;;
    purge)
        _arguments \
            '--once[one round over everything, and its figures]'
        ;;
    inbox)
        _arguments \
            '--group[only of this consumer group; OUTBOX_CONSUMER_GROUP for retry]:GROUP:' \
            '--topic[only of this topic]:TOPIC:' \
            '--key[only of this key]:KEY:' \
            '--id[only this event]:ID:' \
            '--since[only dead since\: a duration such as 2h, or RFC 3339]:TIME:' \
            '--limit[at most N events; 50 for list, no limit for changes]:N:' \
            '--all[without a filter; for list\: no limit]' \
            '--dry-run[say what would happen and change nothing]' \
            '--json[answer as JSON]' \
            '1:action:(list show retry discard)'
        ;;
    config)
        _arguments \
            '--json[one object, names as in the environment]' \
            '--markdown[describe the settings as in the reference]' \
            '--env[as an environment file; secrets are commented out]'
        ;;
    dev-broker)
        _arguments \
            '--listen[where to listen]:HOST\:PORT:'
        ;;
esac
