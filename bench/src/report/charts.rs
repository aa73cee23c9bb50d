//! Plots as SVG text: latency curves, and bars of throughput and CPU time.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoLogRange, IntoSegmentedCoord,
    LineSeries, RGBColor, Rectangle, SVGBackend, SegmentValue, SeriesLabelPosition, WHITE,
};

use crate::report::schema::Run;
use crate::show::{show_ns, show_rate};

/// Colours that stay apart for most kinds of colour vision (Okabe and Ito, then Tol).
const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
    RGBColor(153, 153, 153),
    RGBColor(136, 34, 85),
    RGBColor(17, 119, 51),
    RGBColor(51, 34, 136),
];
const FONT: &str = "sans-serif";
const CURVE_SIZE: (u32, u32) = (460, 300);
const BARS_SIZE: (u32, u32) = (960, 320);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Latency percentiles of one case, a line for each arm, logarithmic.
pub(super) fn latency(title: &str, runs: &[&Run]) -> Result<String> {
    draw(CURVE_SIZE, |canvas| {
        let values = runs.iter().flat_map(|run| run.latency_ns.named());
        let positive: Vec<f64> = values.map(|(_, ns)| ns).filter(|ns| *ns > 0.0).collect();
        let low = positive.iter().copied().fold(f64::INFINITY, f64::min).min(1e9);
        let high = positive.iter().copied().fold(low * 2.0, f64::max);
        let names = ["min", "p50", "p90", "p99", "p99.9", "max"];
        let mut chart = ChartBuilder::on(canvas)
            .caption(title, (FONT, 15))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..5.0, (low * 0.8..high * 1.25).log_scale())?;
        chart
            .configure_mesh()
            .x_labels(names.len())
            .x_label_formatter(&|at| name_at(&names, *at))
            .y_label_formatter(&|ns| show_ns(*ns))
            .light_line_style(WHITE)
            .draw()?;
        for (run, colour) in runs.iter().zip(COLOURS.iter().cycle()) {
            let points = run.latency_ns.named().into_iter().zip(0..);
            let line = points.map(|((_, ns), at)| (f64::from(at), ns.max(low)));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
                .label(&run.arm)
                .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 12))
            .draw()?;
        Ok(())
    })
}

fn name_at(names: &[&str], at: f64) -> String {
    let near = names.iter().zip(0..).find(|(_, index)| (f64::from(*index) - at).abs() < 0.01);
    near.map_or_else(String::new, |(name, _)| (*name).to_owned())
}

/// What the bars of a chart show.
pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    pub(super) value: fn(&Run) -> f64,
    pub(super) unit: &'a str,
}

/// One group of bars for each case, one bar for each arm.
pub(super) fn bars(what: &Bars<'_>, cases: &[(String, Vec<&Run>)]) -> Result<String> {
    let arms = arms_of(cases);
    let highest = cases.iter().flat_map(|(_, runs)| runs.iter().map(|run| (what.value)(run)));
    let highest = highest.filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    draw(BARS_SIZE, |canvas| {
        let last = cases.len().max(1) - 1;
        let mut chart = ChartBuilder::on(canvas)
            .caption(what.title, (FONT, 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(58)
            .build_cartesian_2d((0..last).into_segmented(), 0.0..highest * 1.1)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(cases.len())
            .x_label_formatter(&|at| match at {
                SegmentValue::CenterOf(index) => {
                    cases.get(*index).map_or_else(String::new, |(name, _)| name.clone())
                }
                _ => String::new(),
            })
            .y_label_formatter(&|value| short(*value))
            .y_desc(what.unit)
            .label_style((FONT, 11))
            .draw()?;
        // Bars lie within a segment, which the segmented axis cannot divide: drawn in pixels.
        let area = chart.plotting_area();
        let (x_range, y_range) = area.get_pixel_range();
        let group = f64::from(x_range.end - x_range.start) / cases.len().max(1) as f64;
        let width = group * 0.8 / arms.len().max(1) as f64;
        for ((_, runs), index) in cases.iter().zip(0_u32..) {
            for run in runs {
                let place = arms.iter().position(|arm| *arm == run.arm).unwrap_or(0);
                let left = f64::from(index) * group + group * 0.1 + place as f64 * width;
                let height = f64::from(y_range.end - y_range.start);
                let top = height * (1.0 - (what.value)(run).max(0.0) / (highest * 1.1));
                let corner = (x_range.start + pixel(left), y_range.start + pixel(top));
                let opposite = (x_range.start + pixel(left + width * 0.94), y_range.end);
                let colour = COLOURS[place % COLOURS.len()];
                canvas.draw(&Rectangle::new([corner, opposite], colour.filled()))?;
            }
        }
        Ok(())
    })
}

/// The arms in the order in which they first appear.
pub(super) fn arms_of(cases: &[(String, Vec<&Run>)]) -> Vec<String> {
    let mut arms: Vec<String> = Vec::new();
    for run in cases.iter().flat_map(|(_, runs)| runs) {
        if !arms.contains(&run.arm) {
            arms.push(run.arm.clone());
        }
    }
    arms
}

/// The colour of an arm's bars, as CSS.
pub(super) fn colour_of(place: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[place % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Runs in groups of one case each, in order.
pub(super) fn by_case(runs: &[Run]) -> Vec<(String, Vec<&Run>)> {
    let mut cases: Vec<(String, Vec<&Run>)> = Vec::new();
    for run in runs {
        let name = run.case.name.clone();
        match cases.last_mut() {
            Some((last, group)) if *last == name => group.push(run),
            _ => cases.push((name, vec![run])),
        }
    }
    cases
}

fn short(value: f64) -> String {
    if value >= 1000.0 { show_rate(value) } else { format!("{value:.3}") }
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates; pictures are small")]
fn pixel(at: f64) -> i32 {
    at as i32
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(size: (u32, u32), paint: impl FnOnce(&Canvas<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let painted = canvas.fill(&WHITE).map_err(Into::into).and_then(|()| paint(&canvas));
    painted.and_then(|()| Ok(canvas.present()?)).map_err(|error| anyhow!("a plot: {error}"))?;
    drop(canvas);
    Ok(svg)
}
