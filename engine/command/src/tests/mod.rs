//! The definitions of the arguments, and the reference that is generated from them.

use super::*;

mod reference;

#[test]
fn the_command_line_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn the_help_documents_every_exit_code() {
    let all = [
        Exit::Success,
        Exit::Failed,
        Exit::Usage,
        Exit::BadData,
        Exit::DoesNotFit,
        Exit::Lost,
        Exit::Resumable,
    ];
    for exit in all {
        assert!(EXIT_CODES.iter().any(|(code, _)| *code == exit.code().to_string()), "{exit:?}");
    }
    assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4, 5, 75]);
    assert_eq!(Exit::of_stop(StopCause::Signal(2)).code(), 130);
    let stopped = Exit::of_stop(StopCause::Signal(15)).code();
    let (codes, _) = EXIT_CODES.last().unwrap();
    assert!(codes.ends_with(&format!(", {stopped}")), "{stopped}");
}

#[test]
fn the_color_of_help_is_found_before_parsing() {
    let found = |line: &str| color_of_help(line.split(' ').map(OsString::from));
    assert_eq!(found("train job.toml"), ColorChoice::Auto);
    assert_eq!(found("--color never train"), ColorChoice::Never);
    assert_eq!(found("train --color=always --help"), ColorChoice::Always);
    assert_eq!(found("train --color"), ColorChoice::Auto);
    assert_eq!(found("train --color=red"), ColorChoice::Auto);
    assert_eq!(found("train -- --color=always"), ColorChoice::Auto);
}
