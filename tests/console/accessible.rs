//! What a page needs for people who see little, or use the keyboard or a screen reader.

use serde_json::json;

use crate::browser::Browser;

/// Fails if what the page shows now is hard to read in light or in dark, if a control has no name, or if the focus moves
/// in another order than that of the page.
#[track_caller]
pub fn assert_accessible(browser: &Browser, what: &str) {
    for colours in ["light", "dark"] {
        browser.prefer(colours);
        let dim = browser.script(CONTRAST);
        assert_eq!(dim, json!([]), "{what}, {colours}: text that is hard to read");
    }
    assert_eq!(browser.script(UNLABELLED), json!([]), "{what}: controls without a name");
    assert_eq!(browser.script(UNORDERED), json!([]), "{what}: the focus goes back");
}

/// The texts whose contrast to what is behind them is below 4.5, as WCAG 2 computes it.
const CONTRAST: &str = "
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = parse(colour).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if ((parse(colour)[3] ?? 1) > 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const dim = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '');
        if (!own || !element.checkVisibility() || element.matches(':disabled, [aria-disabled=true]')) continue;
        const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) dim.push(`${element.innerText}: ${contrast.toFixed(2)}`);
    }
    return dim;";

/// The controls without a text or label.
const UNLABELLED: &str = "
    return [...document.querySelectorAll('a, button, input, table')]
        .filter((element) => !element.innerText?.trim() && !element.ariaLabel && !element.labels?.length)
        .map((element) => element.outerHTML);";

/// The controls that are above the one from which the Tab key leads to them.
const UNORDERED: &str = "
    const page = document.querySelector('dialog[open]') ?? document.body;
    const controls = [...page.querySelectorAll('a, button, input, [tabindex]')]
        .filter((element) => element.checkVisibility() && !element.disabled && element.tabIndex >= 0);
    const place = (element) => element.getBoundingClientRect();
    const isUnordered = (element, at) =>
        element.tabIndex > 0 || (at > 0 && place(element).bottom <= place(controls[at - 1]).top);
    return controls.filter(isUnordered).map((element) => element.outerHTML);";
