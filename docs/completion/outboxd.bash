# bash completion of outboxd; written by tools/reference.py
_outboxd() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=
    if [ "$COMP_CWORD" = 1 ]; then
        words='run consume migrate status check events purge inbox config dev-broker ulid version help'
    else
        case "${COMP_WORDS[1]} $previous" in
        'migrate --to') words='' ;;
        'dev-broker --listen') words='' ;;
        'events --status') words='new sent failed dead held' ;;
        'events --topic') words='' ;;
        'events --key') words='' ;;
        'events --tenant') words='' ;;
        'events --id') words='' ;;
        'events --since') words='' ;;
        'events --limit') words='' ;;
        'inbox --group') words='' ;;
        'inbox --topic') words='' ;;
        'inbox --key') words='' ;;
        'inbox --id') words='' ;;
        'inbox --since') words='' ;;
        'inbox --limit') words='' ;;
        *)
            case ${COMP_WORDS[1]} in
            help) words='run consume migrate status check events purge inbox config dev-broker ulid version help' ;;
            migrate) words='up down status print --to' ;;
            status) words='--json --watch' ;;
            check) words='--json' ;;
            events) words='list show retry discard --status --topic --key --tenant --id --since --limit --all --dry-run --json' ;;
            purge) words='--once' ;;
            inbox) words='list show retry discard --group --topic --key --id --since --limit --all --dry-run --json' ;;
            config) words='--json --markdown --env' ;;
            dev-broker) words='--listen' ;;
            esac
            ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -F _outboxd outboxd
