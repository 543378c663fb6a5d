//! As much of JSON as the lines of the sidecar need.

use std::fmt::Write;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Items(Vec<Json>),
    Fields(Vec<(String, Json)>),
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

impl Json {
    /// A field; Null where there is none.
    pub fn get(&self, name: &str) -> &Json {
        self.fields().iter().find(|(n, _)| n == name).map_or(&Json::Null, |(_, v)| v)
    }

    pub fn text(&self) -> &str {
        match self {
            Json::Text(s) => s,
            _ => "",
        }
    }

    pub fn number(&self) -> f64 {
        match self {
            Json::Number(n) => *n,
            _ => 0.0,
        }
    }

    /// A duration, such as "8.9s".
    pub fn seconds(&self) -> f64 {
        self.text().trim_end_matches('s').parse().unwrap_or(0.0)
    }

    pub fn is_some(&self) -> bool {
        *self != Json::Null
    }

    pub fn items(&self) -> &[Json] {
        match self {
            Json::Items(items) => items,
            _ => &[],
        }
    }

    pub fn fields(&self) -> &[(String, Json)] {
        match self {
            Json::Fields(fields) => fields,
            _ => &[],
        }
    }

    pub fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => write!(out, "{n}").expect("a String takes all"),
            Json::Text(s) => write_text(s, out),
            Json::Items(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Json::Fields(fields) => {
                out.push('{');
                for (i, (name, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write_text(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// None: it is no JSON.
    pub fn parse(text: &str) -> Option<Json> {
        let mut p = Parser { rest: text.as_bytes(), depth: 0 };
        let value = p.value()?;
        p.space();
        p.rest.is_empty().then_some(value)
    }
}

fn write_text(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => write!(out, "\\u{:04x}", c as u32).expect("a String takes all"),
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Parser<'a> {
    rest: &'a [u8],
    depth: u32,
}

impl Parser<'_> {
    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn eat(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word.as_bytes())?;
        Some(())
    }

    fn value(&mut self) -> Option<Json> {
        self.space();
        match self.rest.first()? {
            b'n' => self.eat("null").map(|()| Json::Null),
            b't' => self.eat("true").map(|()| Json::Bool(true)),
            b'f' => self.eat("false").map(|()| Json::Bool(false)),
            b'"' => self.text().map(Json::Text),
            b'[' | b'{' => {
                self.depth += 1;
                let value = if self.depth > 64 { None } else { self.list() };
                self.depth -= 1;
                value
            }
            _ => self.number(),
        }
    }

    fn list(&mut self) -> Option<Json> {
        let (open, rest) = self.rest.split_first()?;
        self.rest = rest;
        let end = if *open == b'[' { "]" } else { "}" };
        let (mut items, mut fields) = (Vec::new(), Vec::new());
        self.space();
        while self.eat(end).is_none() {
            if !(items.is_empty() && fields.is_empty()) {
                self.eat(",")?;
                self.space();
            }
            if *open == b'[' {
                items.push(self.value()?);
            } else {
                let name = self.text()?;
                self.space();
                self.eat(":")?;
                fields.push((name, self.value()?));
            }
            self.space();
        }
        Some(if *open == b'[' { Json::Items(items) } else { Json::Fields(fields) })
    }

    fn number(&mut self) -> Option<Json> {
        let end = self.rest.iter().position(|b| !b"+-.0123456789eE".contains(b)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        std::str::from_utf8(digits).ok()?.parse().ok().map(Json::Number)
    }

    fn text(&mut self) -> Option<String> {
        self.eat("\"")?;
        let mut out = Vec::new();
        loop {
            let (b, rest) = self.rest.split_first()?;
            self.rest = rest;
            match b {
                b'"' => return String::from_utf8(out).ok(),
                b'\\' => {
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                b => out.push(*b),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let (b, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match b {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return char::from_u32(first);
                }
                self.eat("\\u")?; // the other half
                let second = self.hex()?.checked_sub(0xdc00).filter(|n| *n < 0x400)?;
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + second);
            }
            b => *b as char, // " \ /
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = std::str::from_utf8(self.rest.get(..4)?).ok()?;
        self.rest = &self.rest[4..];
        u32::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let text = r#"{"a":[1,-2.5,true,false,null],"b":{"c":"ü \"\\ \u0001"},"d":[],"e":{}}"#;
        let value = Json::parse(text).expect("it is JSON");
        let mut out = String::new();
        value.write(&mut out);
        assert_eq!(out, text);
        assert_eq!(Json::parse(r#" "\ud83d\ude00\n\/" "#), Some(Json::Text("😀\n/".into())));
    }

    #[test]
    fn what_is_none() {
        for text in ["", "{", "[1,]x", "{\"a\"}", "\"\\ud83d\"", "\"", "nul", "1 2", "--1", &"[".repeat(100)] {
            assert_eq!(Json::parse(text), None, "{text}");
        }
    }
}
