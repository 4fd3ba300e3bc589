//! The session's token in a signed cookie, so that the requests of one browser are one session.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use axum_extra::extract::{
    SignedCookieJar,
    cookie::{Cookie, SameSite},
};
use sea_router::{RoutingConnection, Token};

/// Begins the name of each cookie that holds a token.
pub(crate) const PREFIX: &str = "session-";

/// Goes on where the browser's last requests stood, and gives it the new token if the request may have written.
///
/// A browser keeps the cookie that comes last, which is not the newest one where two requests overlap. So each response
/// sets one of its own name, in place of those that its request came with; the next request joins all that there are.
///
/// A request that only reads changes no cookie. What it has shown, the next one may not show yet: give it a token too if
/// that matters, for a moment's wait.
pub(crate) async fn carry(
    State(db): State<RoutingConnection>,
    mut jar: SignedCookieJar,
    mut request: Request,
    next: Next,
) -> (SignedCookieJar, Response) {
    // The jar leaves out what we have not signed.
    let (names, tokens): (Vec<_>, Vec<_>) = jar
        .iter()
        .filter(|cookie| cookie.name().starts_with(PREFIX))
        .map(|cookie| (cookie.name().to_owned(), cookie.value().parse().unwrap_or(Token::UNKNOWN)))
        .unzip();
    let joined = tokens.into_iter().reduce(|mut joined, token| {
        joined.advance(&token);
        joined
    });
    let session = match joined {
        Some(token) => db.resume(token),
        None => db.new_session(),
    };
    // `RequestSession` finds it here.
    request.extensions_mut().insert(session.clone());
    let may_write = !request.method().is_safe();
    let response = next.run(request).await;
    if may_write {
        for name in names {
            jar = jar.remove(Cookie::build(name).path("/"));
        }
        let name = format!("{PREFIX}{:016x}", rand::random::<u64>());
        let token = session.token().await.to_string();
        // Over HTTPS, which this example does not speak, `secure(true)` too.
        jar = jar.add(Cookie::build((name, token)).http_only(true).same_site(SameSite::Lax).path("/"));
    }
    (jar, response)
}
